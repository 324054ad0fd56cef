"""The heart vector's loop as one HTML file that turns under the mouse, a finger or the arrow keys;
no network."""

from html import escape

from data_prep.ecg.loops import WAVES
from lvcg_jax.report.page import NOT_FOR_DIAGNOSIS, data_block, document, keys, note, table

STYLE = """
.loop { display: flex; flex-wrap: wrap; gap: 1.5rem; margin-top: .75rem; }
.view { flex: 1 1 22rem; min-width: 0; max-width: 32rem; } .numbers { flex: 1 1 18rem; min-width: 0; }
.view canvas { width: 100%; aspect-ratio: 1; display: block; touch-action: none; cursor: grab;
  border: 1px solid var(--rule); border-radius: 6px; } .view canvas:focus-visible { outline: 3px solid var(--qrs); }
.view input[type=range] { flex: 1 1 10rem; min-width: 0; }
@media print { .view { max-width: 105mm; } }
.numbers table { width: 100%; } .numbers td + td { text-align: right; padding: .3rem 0 .3rem 1rem; }
"""
SCRIPT = """
const data = JSON.parse(document.getElementById('loop').textContent);
const canvas = document.getElementById('view'), pen = canvas.getContext('2d');
const slider = document.getElementById('time'), readout = document.getElementById('readout');
const play = document.getElementById('play');
const [xs, ys, zs] = data.vcg_mv, count = xs.length;
const reach = 1.15 * Math.max(0.05, ...xs.map((x, i) => Math.hypot(x, ys[i], zs[i])));
const views = { frontal: [0, 0], transverse: [0, Math.PI / 2], sagittal: [Math.PI / 2, 0] };
let yaw = 0.5, pitch = 0.35, zoom = 1, moment = data.start, timer = 0;

let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ['ink', 'soft', 'rule', 'p', 'qrs', 't']) {
    colours[name] = style.getPropertyValue('--' + name).trim();
  }
}
function turn(x, y, z) {  // screen right, screen down, depth away from the viewer
  const right = x * Math.cos(yaw) + z * Math.sin(yaw), back = z * Math.cos(yaw) - x * Math.sin(yaw);
  return [right, y * Math.cos(pitch) - back * Math.sin(pitch), y * Math.sin(pitch) + back * Math.cos(pitch)];
}
function partOf(i) {
  for (const name of ['qrs', 't', 'p']) {
    const [first, last] = data.windows_ms[name];
    if (data.ms[i] >= first - 1e-6 && data.ms[i] <= last + 1e-6) return name;
  }
  return null;
}
const parts = xs.map((_, i) => partOf(i));

function draw() {
  const side = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(side * ratio)) canvas.width = canvas.height = Math.round(side * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, side, side);
  const scale = zoom * side / 2 / reach;
  const place = (x, y, z) => {
    const [right, down, depth] = turn(x, y, z);
    return [side / 2 + right * scale, side / 2 + down * scale, depth];
  };
  const line = (a, b, style, width) => {
    pen.strokeStyle = style; pen.lineWidth = width; pen.beginPath(); pen.moveTo(a[0], a[1]); pen.lineTo(b[0], b[1]);
    pen.stroke();
  };
  pen.font = '13px system-ui, sans-serif'; pen.textAlign = 'center'; pen.textBaseline = 'middle'; pen.lineCap = 'round';
  const ends = [[1, 0, 0, 'left'], [-1, 0, 0, 'right'], [0, 1, 0, 'feet'], [0, -1, 0, 'head'], [0, 0, 1, 'back'],
    [0, 0, -1, 'front']], far = reach * 0.86 / zoom, origin = place(0, 0, 0);
  for (const [x, y, z, word] of ends) {
    const end = place(x * far, y * far, z * far), text = place(x * far * 1.08, y * far * 1.08, z * far * 1.08);
    line(origin, end, colours.rule, 1);
    if (Math.hypot(end[0] - origin[0], end[1] - origin[1]) > 30) {
      pen.fillStyle = colours.soft; pen.fillText(word, text[0], text[1]);
    }
  }
  const points = xs.map((x, i) => place(x, ys[i], zs[i]));
  const order = [...Array(count - 1).keys()].filter(i => parts[i + 1] || parts[i]);
  order.sort((i, j) => points[j][2] - points[i][2]);  // what is far is drawn first
  for (const i of order) {
    const near = Math.max(0, Math.min(1, 0.5 - points[i][2] / reach / 1.6));
    pen.globalAlpha = 0.45 + 0.55 * near;
    line(points[i], points[i + 1], colours[parts[i + 1] || parts[i]], 1.4 + 1.8 * near);
  }
  pen.globalAlpha = 1;
  for (const [name, every] of [['p', 40], ['qrs', 12], ['t', 60]]) {  // arrow heads along time
    const own = [...Array(count).keys()].filter(i => parts[i] === name);
    const step = Math.max(2, Math.round(every / data.step));
    for (let k = step >> 1; k < own.length - 1; k += step) {
      const a = points[Math.max(own[k] - 1, 0)], b = points[Math.min(own[k] + 2, count - 1)], at = points[own[k]];
      if (Math.hypot(b[0] - a[0], b[1] - a[1]) < 3) continue;
      const angle = Math.atan2(b[1] - a[1], b[0] - a[0]);
      pen.fillStyle = colours[name]; pen.beginPath();
      for (const corner of [angle, angle + 2.5, angle - 2.5]) {
        pen.lineTo(at[0] + 6 * Math.cos(corner), at[1] + 6 * Math.sin(corner));
      }
      pen.fill();
    }
  }
  const now = points[moment];
  line(origin, now, colours.ink, 2);
  pen.fillStyle = colours.ink; pen.beginPath(); pen.arc(now[0], now[1], 4, 0, 7); pen.fill();
  const size = Math.hypot(xs[moment], ys[moment], zs[moment]), part = data.names[parts[moment]] || '';
  readout.textContent = `R ${data.ms[moment] < 0 ? '-' : '+'}${Math.abs(data.ms[moment]).toFixed(0)} ms ${part}: ` +
    `x ${xs[moment].toFixed(2)}, y ${ys[moment].toFixed(2)}, z ${zs[moment].toFixed(2)}, size ${size.toFixed(2)} mV`;
  slider.value = moment;
}

const fingers = new Map();
canvas.addEventListener('pointerdown', e => { canvas.setPointerCapture(e.pointerId); fingers.set(e.pointerId, e); });
for (const name of ['pointerup', 'pointercancel']) canvas.addEventListener(name, e => fingers.delete(e.pointerId));
canvas.addEventListener('pointermove', e => {
  const before = fingers.get(e.pointerId);
  if (!before) return;
  if (fingers.size === 1) {
    yaw += (e.clientX - before.clientX) * 0.01;
    pitch = Math.max(-Math.PI / 2, Math.min(Math.PI / 2, pitch + (e.clientY - before.clientY) * 0.01));
  } else {
    const other = [...fingers.values()].find(f => f.pointerId !== e.pointerId);
    const apart = f => Math.hypot(f.clientX - other.clientX, f.clientY - other.clientY);
    setZoom(zoom * apart(e) / Math.max(1, apart(before)));
  }
  fingers.set(e.pointerId, e);
  draw();
});
function setZoom(value) { zoom = Math.max(0.5, Math.min(12, value)); }
canvas.addEventListener('wheel', e => {  // only once it was clicked: else the page scrolls on
  if (document.activeElement !== canvas) return;
  e.preventDefault(); setZoom(zoom * Math.exp(-e.deltaY / 500)); draw();
}, { passive: false });
canvas.addEventListener('keydown', e => {
  const step = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[e.key];
  if (step) { yaw += step[0]; pitch = Math.max(-Math.PI / 2, Math.min(Math.PI / 2, pitch + step[1])); }
  else if (e.key === '+' || e.key === '-') setZoom(zoom * (e.key === '+' ? 1.2 : 1 / 1.2));
  else return;
  e.preventDefault(); draw();
});
for (const button of document.querySelectorAll('button[data-view]')) button.addEventListener('click', () => {
  [yaw, pitch] = views[button.dataset.view]; draw();
});
document.getElementById('larger').addEventListener('click', () => { setZoom(zoom * 1.5); draw(); });
document.getElementById('smaller').addEventListener('click', () => { setZoom(zoom / 1.5); draw(); });
slider.addEventListener('input', () => { stop(); moment = Number(slider.value); draw(); });
function stop() { clearInterval(timer); timer = 0; play.textContent = 'Play'; }
play.addEventListener('click', () => {
  if (timer) return stop();
  play.textContent = 'Stop';
  timer = setInterval(() => { moment = (moment + Math.max(1, Math.round(4 / data.step))) % count; draw(); }, 40);
});
function again() { readColours(); draw(); }
window.addEventListener('resize', draw);
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', again);
window.addEventListener('beforeprint', () => { document.documentElement.dataset.print = '1'; again(); });
window.addEventListener('afterprint', () => { delete document.documentElement.dataset.print; again(); });
again();
"""


def loop_view(facts: dict) -> str:
    """The canvas with its buttons and its data; a page that holds it needs STYLE and SCRIPT."""
    ms = facts["ms"]
    held = {key: facts[key] for key in ("ms", "vcg_mv", "windows_ms")}
    held |= {
        "names": WAVES,
        "step": ms[1] - ms[0],
        "start": min(range(len(ms)), key=lambda i: abs(ms[i])),
    }
    spans = facts["windows_ms"].items()
    colours = keys(
        (f"var(--{name})", f"{WAVES[name]} {first:.0f} to {last:.0f} ms")
        for name, (first, last) in spans
    )
    buttons = "".join(
        f'<button type="button" data-view="{name}">{name.capitalize()}</button>\n'
        for name in ("frontal", "transverse", "sagittal")
    )
    return f"""<div class="view">
<canvas id="view" tabindex="0" role="img" aria-label="Loop of the heart vector in three dimensions; arrow keys turn it,
plus and minus change its size. The numbers stand in the table."></canvas>
<div class="bar">
{buttons}<button type="button" id="larger" aria-label="larger">+</button>
<button type="button" id="smaller" aria-label="smaller">&minus;</button>
</div>
<div class="bar"><button type="button" id="play">Play</button>
<input type="range" id="time" min="0" max="{len(ms) - 1}" value="0" aria-label="time in the beat"></div>
<p id="readout" class="soft" role="status"></p>
{colours}<p class="soft screen">Drag to turn, wheel (after a click) or two fingers to enlarge. Frontal: from the front.
Transverse: from above, the front at the bottom. Sagittal: from the patient's left, the front at the left.</p>
</div>
{data_block("loop", held)}"""


def source_words(facts: dict) -> str:
    """What a loop was made from."""
    beats = f"median of {facts['beats']} beats" if facts["beats"] > 1 else "one beat"
    return f"{beats}, from {', '.join(facts['leads'])}, {facts['geometry']} geometry"


def page(facts: dict, lines: list[tuple[str, str]]) -> str:
    """The page of a summary of lvcg_jax.report.vcg; `lines` are its numbers as (name, value)."""
    body = f"""{"".join(map(note, facts["notes"]))}<main class="loop">
{loop_view(facts)}<div class="numbers">
{table(("", ""), lines)}<p class="soft">x to the patient's left, y to the feet, z to the back, in mV. Frontal axes: 0°
to the left, +90° to the feet. Simple time windows on the median beat. {escape(NOT_FOR_DIAGNOSIS)}</p>
</div>
</main>"""
    return document(
        f"Vectorcardiogram of {facts['record']}", body, [STYLE], [SCRIPT], source_words(facts)
    )

"""Maps of an embedding for a report: PCA and t-SNE on canvases, coloured by any label, naming what
is pointed at.

Ten thousand records take some 300 kB: a place is two 16-bit numbers, labels are numbers of a list.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from lvcg_jax.embed.table import Table
from lvcg_jax.report.page import data_block, figure
from lvcg_jax.stats.scaling import fit_pca
from lvcg_jax.studies.published import in_order

MOST_ROWS = 10_000
FEWEST_ROWS = 12  # under so many records a map shows nothing
TSNE_INPUT = 50  # principal components that t-SNE starts from
SPLIT = "split"  # what else records can be coloured by
STYLE = """
.maps { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: 1rem; }
.map { position: relative; max-width: 38rem; }
.map canvas { width: 100%; aspect-ratio: 1; display: block; border: 1px solid var(--rule);
  border-radius: 6px; } .map h3 { margin: .3rem 0; }
.tip { position: absolute; pointer-events: none; background: var(--ink); color: var(--paper); border-radius: 5px;
  font-size: .8rem; line-height: 1.35; padding: .35rem .55rem; max-width: 16rem; display: none; z-index: 2;
  overflow-wrap: anywhere; }
#legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .875rem; margin: .4rem 0; }
@media print { .map { max-width: 115mm; } }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .4em; }
"""
SCRIPT = """
const data = JSON.parse(document.getElementById('map-data').textContent), count = data.records.length;
const choice = document.getElementById('colour'), legend = document.getElementById('legend');
const tasks = data.tasks.map(task => ({ ...task, rows: task.rows.split(';').map(
  text => text === '-' ? null : text === '' ? [] : text.split(',').map(Number)) }));
const maps = data.maps.map((map, k) => {
  const bytes = Uint8Array.from(atob(map.places), letter => letter.charCodeAt(0));
  const places = new Uint16Array(bytes.buffer), canvas = document.getElementById('map' + k);
  return { ...map, places, canvas, pen: canvas.getContext('2d'), tip: canvas.parentElement.querySelector('.tip') };
});
const order = Int32Array.from({ length: count }, (_, i) => (i * 7919) % count);  // so that no label covers another
const everyRow = new Set(order).size === count ? order : Int32Array.from({ length: count }, (_, i) => i);
let colours = [], grey = '', faint = '', ink = '', soft = '', paper = '', shade = [], near = -1;

function readColours() {
  const style = getComputedStyle(document.documentElement), of = name => style.getPropertyValue('--' + name).trim();
  colours = [0, 1, 2, 3, 4, 5, 6].map(i => of('s' + i));
  [grey, faint, ink, soft, paper] = ['grey', 'rule', 'ink', 'soft', 'paper'].map(of);
}
function entry(colour, text) {
  const item = document.createElement('span'), dot = document.createElement('span');
  dot.className = 'dot'; dot.style.background = colour;
  item.append(dot, text); legend.append(item);
}
function paint() {
  const [taskNumber, only] = choice.value.split('/'), task = tasks[taskNumber];
  legend.replaceChildren();
  shade = new Array(count).fill(faint);
  if (only !== undefined) {
    let yes = 0, no = 0;
    task.rows.forEach((row, i) => {
      if (row === null) return;
      if (row.includes(Number(only))) { shade[i] = colours[1]; yes++; } else { shade[i] = grey; no++; }
    });
    entry(colours[1], `${task.classes[only]} (${yes})`); entry(grey, `other (${no})`);
    if (yes + no < count) entry(faint, `not labelled (${count - yes - no})`);
    return;
  }
  const numbers = task.classes.map((_, c) => task.rows.filter(row => row !== null && row[0] === c).length);
  const ranked = [...numbers.keys()].filter(c => numbers[c]).sort((a, b) => numbers[b] - numbers[a] || a - b);
  const colourOf = new Map(ranked.slice(0, colours.length).map((c, k) => [c, colours[k]]));
  let rest = 0, none = 0, unknown = 0;
  task.rows.forEach((row, i) => {
    if (row === null) unknown++;
    else if (!row.length) none++;
    else if (colourOf.has(row[0])) shade[i] = colourOf.get(row[0]);
    else { shade[i] = grey; rest++; }
  });
  for (const [c, colour] of colourOf) entry(colour, `${task.classes[c]} (${numbers[c]})`);
  if (rest) entry(grey, `${ranked.length - colours.length} others (${rest})`);
  if (none) entry(faint, `none of these (${none})`);
  if (unknown) entry(faint, `not labelled (${unknown})`);
}
function spot(map, i) {
  const side = map.canvas.clientWidth, edge = 30, room = side - 2 * edge;
  return [edge + map.places[2 * i] / 65535 * room, side - edge - map.places[2 * i + 1] / 65535 * room];
}
function draw(map) {
  const { canvas, pen } = map, side = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
  canvas.width = canvas.height = Math.round(side * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const radius = Math.max(1.6, Math.min(4.5, 120 / Math.sqrt(count)));
  pen.globalAlpha = 0.8;
  for (const pass of [0, 1]) for (const i of everyRow) {  // pale ones first
    if ((shade[i] !== faint && shade[i] !== grey) != pass) continue;
    const [x, y] = spot(map, i);
    pen.fillStyle = shade[i]; pen.beginPath(); pen.arc(x, y, radius, 0, 7); pen.fill();
  }
  pen.globalAlpha = 1;
  for (const [i, text] of data.marks) {
    const [x, y] = spot(map, i);
    pen.strokeStyle = ink; pen.lineWidth = text ? 3 : 1.5; pen.beginPath(); pen.arc(x, y, text ? 8 : 6, 0, 7);
    pen.stroke();
    if (!text) continue;
    pen.font = '600 13px system-ui, sans-serif'; pen.textAlign = x > side * 0.6 ? 'right' : 'left';
    const at = x + (x > side * 0.6 ? -13 : 13);
    pen.strokeStyle = paper; pen.lineWidth = 4; pen.strokeText(text, at, y + 4);
    pen.fillStyle = ink; pen.fillText(text, at, y + 4);
  }
  if (near >= 0) {
    const [x, y] = spot(map, near);
    pen.strokeStyle = ink; pen.lineWidth = 2; pen.beginPath(); pen.arc(x, y, radius + 4, 0, 7); pen.stroke();
  }
  pen.font = '12px system-ui, sans-serif'; pen.fillStyle = soft; pen.textAlign = 'center';
  pen.fillText(map.x, side / 2, side - 9);
  pen.save(); pen.translate(16, side / 2); pen.rotate(-Math.PI / 2); pen.fillText(map.y, 0, 0); pen.restore();
}
function describe(i) {
  const lines = tasks.map(task => task.rows[i] === null ? '' :
    `${task.name}: ${task.rows[i].map(c => task.classes[c]).join(', ') || 'none'}`);
  return [data.records[i], ...lines.filter(Boolean)];
}
function point(map, event) {
  const box = map.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  let best = 12 * 12, found = -1;
  for (let i = 0; i < count; i++) {
    const [a, b] = spot(map, i), apart = (a - x) * (a - x) + (b - y) * (b - y);
    if (apart < best) { best = apart; found = i; }
  }
  if (found !== near) { near = found; maps.forEach(draw); }
  maps.forEach(other => { other.tip.style.display = 'none'; });
  if (found < 0) return;
  map.tip.replaceChildren(...describe(found).map(text => {
    const line = document.createElement('div'); line.textContent = text; return line;
  }));
  const [a, b] = spot(map, found);
  map.tip.style.display = 'block';
  const top = map.canvas.offsetTop + b, left = Math.min(a + 12, map.canvas.clientWidth - map.tip.offsetWidth - 4);
  map.tip.style.left = Math.max(0, left) + 'px'; map.tip.style.top = top + 14 + 'px';
}
function again() { readColours(); paint(); maps.forEach(draw); }
for (const map of maps) {
  map.canvas.addEventListener('pointermove', event => point(map, event));
  map.canvas.addEventListener('pointerdown', event => point(map, event));
  map.canvas.addEventListener('pointerleave', () => {
    near = -1; maps.forEach(other => { other.tip.style.display = 'none'; draw(other); });
  });
}
choice.addEventListener('change', () => { paint(); maps.forEach(draw); });
window.addEventListener('resize', () => maps.forEach(draw));
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', again);
window.addEventListener('beforeprint', () => { document.documentElement.dataset.print = '1'; again(); });
window.addEventListener('afterprint', () => { delete document.documentElement.dataset.print; again(); });
again();
"""


@dataclass(frozen=True)
class Map:
    """Places [m,2] of the rows of a table."""

    title: str
    places: np.ndarray
    x: str  # what is to the right, with its unit
    y: str


def choose_rows(table: Table, most: int = MOST_ROWS) -> np.ndarray:
    """Rows [k] to show, in order: all, or some drawn at random, the same ones every time."""
    count = len(table.record_id)
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def pca_map(
    embedding: np.ndarray, title: str, also: np.ndarray | None = None
) -> tuple[Map, np.ndarray] | None:
    """The map of the first two components of rows [m,d], each feature scaled to unit variance, and
    the components.

    Rows `also` [k,d] are placed with them without a say in the axes. None if the rows are few or
    alike.
    """
    if len(embedding) < FEWEST_ROWS:
        return None
    spread = embedding.std(0)
    scale = np.where(spread > 1e-9, spread, 1.0)
    pca = fit_pca(embedding / scale, TSNE_INPUT)
    if len(pca.variance) < 2:
        return None
    components = pca.project(
        (embedding if also is None else np.concatenate([embedding, also])) / scale
    )
    share = 100 * pca.variance / pca.total_variance
    names = (f"principal component {k + 1} ({share[k]:.0f}% of variance)" for k in range(2))
    return Map(title, components[:, :2], *names), components


def make_maps(embedding: np.ndarray, with_tsne: bool = True) -> list[Map]:
    """PCA, and t-SNE of its first components; none if the rows are few or alike."""
    found = pca_map(embedding, "PCA")
    if found is None:
        return []
    first, components = found
    if not with_tsne:
        return [first]
    from sklearn.manifold import TSNE  # late: it takes a second to import

    perplexity = min(30.0, (len(components) - 1) / 4)
    places = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(components)
    return [
        first,
        Map("t-SNE", places, f"t-SNE 1 (no unit; perplexity {perplexity:g})", "t-SNE 2 (no unit)"),
    ]


def quantise(places: np.ndarray) -> str:
    """Places [m,2] as 16-bit numbers from edge to edge, one scale for both directions, in
    base64."""
    low, high = places.min(0), places.max(0)
    span = max(float((high - low).max()), 1e-12)
    whole = np.round(65535 * ((places - (low + high) / 2) / span + 0.5)).clip(0, 65535)
    return base64.b64encode(whole.astype("<u2").tobytes()).decode()


def label_rows(table: Table, rows: np.ndarray) -> list[dict]:
    """The tasks of a table, and the split, as {name, classes, rows}: '0,2;-;' is two classes, not
    labelled, none."""
    tasks = []
    known = table.tasks
    for task in in_order(known):
        classes = known[task]
        number = {name: str(i) for i, name in enumerate(classes)}
        cells = [table.labels[i].get(task) for i in rows]
        words = [
            "-" if names is None else ",".join(number[name] for name in names) for names in cells
        ]
        tasks.append({"name": task, "classes": classes, "rows": ";".join(words)})
    splits = sorted(set(table.split[rows].tolist()))
    if splits != [""]:
        number = {name: str(i) for i, name in enumerate(splits)}
        named = [name or "none" for name in splits]
        tasks.append(
            {
                "name": SPLIT,
                "classes": named,
                "rows": ";".join(number[s] for s in table.split[rows]),
            }
        )
    return tasks or [
        {"name": "nothing", "classes": ["all records"], "rows": ";".join(["0"] * len(rows))}
    ]


def map_names(table: Table, rows: np.ndarray) -> list[str]:
    """What the pointer shows first: the record, and the window if there are several."""
    several = table.window is not None and len(set(table.window[rows].tolist())) > 1
    return [
        f"{table.record_id[i]}, window {table.window[i]}" if several else str(table.record_id[i])
        for i in rows
    ]


def maps_figure(
    maps: Sequence[Map],
    names: Sequence[str],
    tasks: Sequence[dict],
    caption: str,
    command: str,
    marks: Sequence[tuple[int, str]] = (),
) -> str:
    """Canvases with a selector of the colour; `marks` are rings (row, word). A page needs STYLE and
    SCRIPT."""
    options = []
    for t, task in enumerate(tasks):
        options.append(f'<option value="{t}">{escape(task["name"])}</option>')
        if task["name"] != SPLIT and len(task["classes"]) > 1:
            options += [
                f'<option value="{t}/{c}">{escape(task["name"])}: {escape(name)} or not</option>'
                for c, name in enumerate(task["classes"])
            ]
    canvases = "".join(
        f'<div class="map"><h3>{escape(m.title)}</h3><canvas id="map{k}" role="img" aria-label="{escape(m.title)} of'
        f' {len(names)} records; {escape(m.x)}, {escape(m.y)}"></canvas><div class="tip"></div></div>\n'
        for k, m in enumerate(maps)
    )
    held = {
        "maps": [{"x": m.x, "y": m.y, "places": quantise(m.places)} for m in maps],
        "records": list(names),
        "tasks": list(tasks),
        "marks": [list(mark) for mark in marks],
    }
    drawing = f"""<div class="bar"><label for="colour">Colour by</label>
<select id="colour">{"".join(options)}</select></div>
<div id="legend"></div>
<div class="maps">
{canvases}</div>
{data_block("map-data", held)}"""
    return figure(drawing, caption, command)

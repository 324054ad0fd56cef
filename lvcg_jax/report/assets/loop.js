// The heart vector's loop on a canvas: turned by mouse, finger or arrow keys, played in time.
const data = JSON.parse(document.getElementById('loop').textContent);
const canvas = document.getElementById('view'), pen = canvas.getContext('2d');
const slider = document.getElementById('time'), readout = document.getElementById('readout');
const play = document.getElementById('play');
const [xs, ys, zs] = data.vcg_mv, count = xs.length;
const reach = 1.15 * Math.max(0.05, ...xs.map((x, i) => Math.hypot(x, ys[i], zs[i])));
const views = { frontal: [0, 0], transverse: [0, Math.PI / 2], sagittal: [Math.PI / 2, 0] };
const ends = [
  [1, 0, 0, 'left'], [-1, 0, 0, 'right'], [0, 1, 0, 'feet'],
  [0, -1, 0, 'head'], [0, 0, 1, 'back'], [0, 0, -1, 'front'],
];
const parts = xs.map((_, i) => partOf(i));
const fingers = new Map();
let yaw = 0.5, pitch = 0.35, zoom = 1, moment = data.start, timer = 0;
let colours = {};

function partOf(i) {  // the wave that sample i belongs to
  for (const name of ['qrs', 't', 'p']) {
    const [first, last] = data.windows_ms[name];
    if (data.ms[i] >= first - 1e-6 && data.ms[i] <= last + 1e-6) return name;
  }
  return null;
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ['ink', 'soft', 'rule', 'p', 'qrs', 't']) {
    colours[name] = style.getPropertyValue('--' + name).trim();
  }
}

function turn(x, y, z) {  // screen right, screen down, depth away from the viewer
  const right = x * Math.cos(yaw) + z * Math.sin(yaw);
  const back = z * Math.cos(yaw) - x * Math.sin(yaw);
  const down = y * Math.cos(pitch) - back * Math.sin(pitch);
  return [right, down, y * Math.sin(pitch) + back * Math.cos(pitch)];
}

function line(from, to, style, width) {
  pen.strokeStyle = style;
  pen.lineWidth = width;
  pen.beginPath();
  pen.moveTo(from[0], from[1]);
  pen.lineTo(to[0], to[1]);
  pen.stroke();
}

function draw() {
  const side = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
  const pixels = Math.round(side * ratio);
  if (canvas.width !== pixels) canvas.width = canvas.height = pixels;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, side, side);
  pen.font = '13px system-ui, sans-serif';
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  pen.lineCap = 'round';
  const scale = zoom * side / 2 / reach;
  const place = (x, y, z) => {
    const [right, down, depth] = turn(x, y, z);
    return [side / 2 + right * scale, side / 2 + down * scale, depth];
  };
  const origin = place(0, 0, 0), points = xs.map((x, i) => place(x, ys[i], zs[i]));
  drawAxes(place, origin);
  drawLoop(points);
  drawArrows(points);
  drawMoment(origin, points[moment]);
}

function drawAxes(place, origin) {
  const far = reach * 0.86 / zoom, beyond = far * 1.08;
  for (const [x, y, z, word] of ends) {
    const end = place(x * far, y * far, z * far);
    line(origin, end, colours.rule, 1);
    if (Math.hypot(end[0] - origin[0], end[1] - origin[1]) <= 30) continue;  // points at the viewer
    const text = place(x * beyond, y * beyond, z * beyond);
    pen.fillStyle = colours.soft;
    pen.fillText(word, text[0], text[1]);
  }
}

function drawLoop(points) {  // what is far first, and paler
  const order = [...Array(count - 1).keys()].filter(i => parts[i + 1] || parts[i]);
  order.sort((i, j) => points[j][2] - points[i][2]);
  for (const i of order) {
    const near = Math.max(0, Math.min(1, 0.5 - points[i][2] / reach / 1.6));
    pen.globalAlpha = 0.45 + 0.55 * near;
    line(points[i], points[i + 1], colours[parts[i + 1] || parts[i]], 1.4 + 1.8 * near);
  }
  pen.globalAlpha = 1;
}

function drawArrows(points) {  // heads in the direction of time
  for (const [name, every] of Object.entries(data.arrow_ms)) {
    const own = [...Array(count).keys()].filter(i => parts[i] === name);
    const step = Math.max(2, Math.round(every / data.step));
    for (let k = step >> 1; k < own.length - 1; k += step) {
      const a = points[Math.max(own[k] - 1, 0)], b = points[Math.min(own[k] + 2, count - 1)];
      if (Math.hypot(b[0] - a[0], b[1] - a[1]) < 3) continue;
      const at = points[own[k]], angle = Math.atan2(b[1] - a[1], b[0] - a[0]);
      pen.fillStyle = colours[name];
      pen.beginPath();
      for (const corner of [angle, angle + 2.5, angle - 2.5]) {
        pen.lineTo(at[0] + 6 * Math.cos(corner), at[1] + 6 * Math.sin(corner));
      }
      pen.fill();
    }
  }
}

function drawMoment(origin, now) {
  line(origin, now, colours.ink, 2);
  pen.fillStyle = colours.ink;
  pen.beginPath();
  pen.arc(now[0], now[1], 4, 0, 7);
  pen.fill();
  const [x, y, z, ms] = [xs[moment], ys[moment], zs[moment], data.ms[moment]];
  const time = `R ${ms < 0 ? '-' : '+'}${Math.abs(ms).toFixed(0)} ms`;
  const vector = `x ${x.toFixed(2)}, y ${y.toFixed(2)}, z ${z.toFixed(2)}`;
  const size = `size ${Math.hypot(x, y, z).toFixed(2)} mV`;
  readout.textContent = `${time} ${data.names[parts[moment]] || ''}: ${vector}, ${size}`;
  slider.value = moment;
}

function tilt(change) {
  pitch = Math.max(-Math.PI / 2, Math.min(Math.PI / 2, pitch + change));
}

function setZoom(value) {
  zoom = Math.max(0.5, Math.min(12, value));
}

function stop() {
  clearInterval(timer);
  timer = 0;
  play.textContent = 'Play';
}

function again() {
  readColours();
  draw();
}

canvas.addEventListener('pointerdown', event => {
  canvas.setPointerCapture(event.pointerId);
  fingers.set(event.pointerId, event);
});
for (const name of ['pointerup', 'pointercancel']) {
  canvas.addEventListener(name, event => fingers.delete(event.pointerId));
}
canvas.addEventListener('pointermove', event => {
  const before = fingers.get(event.pointerId);
  if (!before) return;
  if (fingers.size === 1) {
    yaw += (event.clientX - before.clientX) * 0.01;
    tilt((event.clientY - before.clientY) * 0.01);
  } else {
    const other = [...fingers.values()].find(finger => finger.pointerId !== event.pointerId);
    const apart = f => Math.hypot(f.clientX - other.clientX, f.clientY - other.clientY);
    setZoom(zoom * apart(event) / Math.max(1, apart(before)));
  }
  fingers.set(event.pointerId, event);
  draw();
});
canvas.addEventListener('wheel', event => {  // only once it was clicked: else the page scrolls on
  if (document.activeElement !== canvas) return;
  event.preventDefault();
  setZoom(zoom * Math.exp(-event.deltaY / 500));
  draw();
}, { passive: false });
canvas.addEventListener('keydown', event => {
  const steps = {
    ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1],
  };
  const step = steps[event.key];
  if (step) {
    yaw += step[0];
    tilt(step[1]);
  } else if (event.key === '+' || event.key === '-') {
    setZoom(zoom * (event.key === '+' ? 1.2 : 1 / 1.2));
  } else return;
  event.preventDefault();
  draw();
});
for (const button of document.querySelectorAll('button[data-view]')) {
  button.addEventListener('click', () => {
    [yaw, pitch] = views[button.dataset.view];
    draw();
  });
}
for (const [name, factor] of [['larger', 1.5], ['smaller', 1 / 1.5]]) {
  document.getElementById(name).addEventListener('click', () => {
    setZoom(zoom * factor);
    draw();
  });
}
slider.addEventListener('input', () => {
  stop();
  moment = Number(slider.value);
  draw();
});
play.addEventListener('click', () => {
  if (timer) return stop();
  play.textContent = 'Stop';
  timer = setInterval(() => {
    moment = (moment + Math.max(1, Math.round(4 / data.step))) % count;
    draw();
  }, 40);
});
window.addEventListener('resize', draw);

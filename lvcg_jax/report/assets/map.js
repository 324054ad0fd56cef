// Maps of an embedding on canvases: coloured by any label, naming the record under the pointer.
const data = JSON.parse(document.getElementById('map-data').textContent);
const count = data.records.length;
const choice = document.getElementById('colour'), legend = document.getElementById('legend');
const tasks = data.tasks.map(task => ({ ...task, rows: task.rows.split(';').map(classesOf) }));
const maps = data.maps.map((map, k) => {
  const bytes = Uint8Array.from(atob(map.places), letter => letter.charCodeAt(0));
  const canvas = document.getElementById('map' + k);
  const tip = canvas.parentElement.querySelector('.tip');
  const places = new Uint16Array(bytes.buffer);
  return { ...map, places, canvas, pen: canvas.getContext('2d'), tip };
});
const numbers = Int32Array.from({ length: count }, (_, i) => i);
const mixed = numbers.map(i => (i * 7919) % count);  // so that no label covers another
const everyRow = new Set(mixed).size === count ? mixed : numbers;
let colours = [], grey = '', faint = '', ink = '', soft = '', paper = '', shade = [], near = -1;

function classesOf(text) {  // '-': not labelled, '': none of the classes, '0,2': two of them
  if (text === '-') return null;
  return text === '' ? [] : text.split(',').map(Number);
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const of = name => style.getPropertyValue('--' + name).trim();
  colours = [0, 1, 2, 3, 4, 5, 6].map(i => of('s' + i));
  [grey, faint, ink, soft, paper] = ['grey', 'rule', 'ink', 'soft', 'paper'].map(of);
}

function entry(colour, text) {
  const item = document.createElement('span'), dot = document.createElement('span');
  dot.className = 'dot';
  dot.style.background = colour;
  item.append(dot, text);
  legend.append(item);
}

function paint() {  // the colour of every row, and the legend
  const [taskNumber, only] = choice.value.split('/'), task = tasks[taskNumber];
  legend.replaceChildren();
  shade = new Array(count).fill(faint);
  if (only === undefined) paintClasses(task);
  else paintOne(task, Number(only));
}

function paintOne(task, only) {
  let yes = 0, no = 0;
  task.rows.forEach((row, i) => {
    if (row === null) return;
    const has = row.includes(only);
    shade[i] = has ? colours[1] : grey;
    if (has) yes++; else no++;
  });
  entry(colours[1], `${task.classes[only]} (${yes})`);
  entry(grey, `other (${no})`);
  if (yes + no < count) entry(faint, `not labelled (${count - yes - no})`);
}

function paintClasses(task) {
  const sizes = task.classes.map((_, c) => task.rows.filter(row => row && row[0] === c).length);
  const ranked = [...sizes.keys()].filter(c => sizes[c]);
  ranked.sort((a, b) => sizes[b] - sizes[a] || a - b);
  const colourOf = new Map(ranked.slice(0, colours.length).map((c, k) => [c, colours[k]]));
  let rest = 0, none = 0, unknown = 0;
  task.rows.forEach((row, i) => {
    if (row === null) unknown++;
    else if (!row.length) none++;
    else if (colourOf.has(row[0])) shade[i] = colourOf.get(row[0]);
    else {
      shade[i] = grey;
      rest++;
    }
  });
  for (const [c, colour] of colourOf) entry(colour, `${task.classes[c]} (${sizes[c]})`);
  if (rest) entry(grey, `${ranked.length - colours.length} others (${rest})`);
  if (none) entry(faint, `none of these (${none})`);
  if (unknown) entry(faint, `not labelled (${unknown})`);
}

function spot(map, i) {
  const side = map.canvas.clientWidth, edge = 30, room = (side - 2 * edge) / 65535;
  return [edge + map.places[2 * i] * room, side - edge - map.places[2 * i + 1] * room];
}

function ring(pen, [x, y], radius, width) {
  pen.strokeStyle = ink;
  pen.lineWidth = width;
  pen.beginPath();
  pen.arc(x, y, radius, 0, 7);
  pen.stroke();
}

function draw(map) {
  const { canvas, pen } = map, side = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
  canvas.width = canvas.height = Math.round(side * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const radius = Math.max(1.6, Math.min(4.5, 120 / Math.sqrt(count)));
  pen.globalAlpha = 0.8;
  for (const coloured of [false, true]) {  // pale ones first
    for (const i of everyRow) {
      if ((shade[i] !== faint && shade[i] !== grey) !== coloured) continue;
      const [x, y] = spot(map, i);
      pen.fillStyle = shade[i];
      pen.beginPath();
      pen.arc(x, y, radius, 0, 7);
      pen.fill();
    }
  }
  pen.globalAlpha = 1;
  for (const [i, text] of data.marks) {
    const [x, y] = spot(map, i), right = x > side * 0.6, at = x + (right ? -13 : 13);
    ring(pen, [x, y], text ? 8 : 6, text ? 3 : 1.5);
    if (!text) continue;
    pen.font = '600 13px system-ui, sans-serif';
    pen.textAlign = right ? 'right' : 'left';
    pen.strokeStyle = paper;
    pen.lineWidth = 4;
    pen.strokeText(text, at, y + 4);
    pen.fillStyle = ink;
    pen.fillText(text, at, y + 4);
  }
  if (near >= 0) ring(pen, spot(map, near), radius + 4, 2);
  pen.font = '12px system-ui, sans-serif';
  pen.fillStyle = soft;
  pen.textAlign = 'center';
  pen.fillText(map.x, side / 2, side - 9);
  pen.save();
  pen.translate(16, side / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText(map.y, 0, 0);
  pen.restore();
}

function describe(i) {
  const lines = tasks.filter(task => task.rows[i] !== null).map(task => {
    const names = task.rows[i].map(c => task.classes[c]);
    return `${task.name}: ${names.join(', ') || 'none'}`;
  });
  return [data.records[i], ...lines];
}

function hideTips() {
  for (const map of maps) map.tip.style.display = 'none';
}

function point(map, event) {  // marks and names the nearest record
  const box = map.canvas.getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top;
  let least = 12 * 12, found = -1;
  for (let i = 0; i < count; i++) {
    const [a, b] = spot(map, i), apart = (a - x) * (a - x) + (b - y) * (b - y);
    if (apart < least) {
      least = apart;
      found = i;
    }
  }
  if (found !== near) {
    near = found;
    maps.forEach(draw);
  }
  hideTips();
  if (found < 0) return;
  map.tip.replaceChildren(...describe(found).map(text => {
    const line = document.createElement('div');
    line.textContent = text;
    return line;
  }));
  map.tip.style.display = 'block';
  const [a, b] = spot(map, found), most = map.canvas.clientWidth - map.tip.offsetWidth - 4;
  map.tip.style.left = Math.max(0, Math.min(a + 12, most)) + 'px';
  map.tip.style.top = map.canvas.offsetTop + b + 14 + 'px';
}

function again() {
  readColours();
  paint();
  maps.forEach(draw);
}

for (const map of maps) {
  map.canvas.addEventListener('pointermove', event => point(map, event));
  map.canvas.addEventListener('pointerdown', event => point(map, event));
  map.canvas.addEventListener('pointerleave', () => {
    near = -1;
    hideTips();
    maps.forEach(draw);
  });
}
choice.addEventListener('change', () => {
  paint();
  maps.forEach(draw);
});
window.addEventListener('resize', () => maps.forEach(draw));

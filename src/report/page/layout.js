// Where boxes lie: layers from top to bottom (Sugiyama, Tagawa and Toda 1981), group by group from the inside out. What is folded is
// one box and is not laid out.

const GAP_X = 18;
const GAP_Y = 34;
const PAD = 14;
const HEAD = 28;
const LEAF_HEIGHT = 40;
const SWEEPS = 6;

// Room for both lines of a box.
const boxWidth = (item) => Math.min(250, Math.max(84, 30 + 7.4 * headline(item).length, 22 + 5.7 * remark(item).length));

// Sizes and places of all that is visible below a group, with `x` and `y` from the corner of the root; and the edges between
// visible boxes as lists of points.
function layOut(root) {
  const visible = new Map();
  show(root, root, visible);
  const pairs = new Map();
  for (const node of nodes) {
    const to = visible.get(node.i);
    for (const arg of node.args) {
      const from = visible.get(arg);
      if (from === to) continue;
      const key = from.id + "," + to.id;
      const known = pairs.get(key);
      if (known) known.count++;
      else pairs.set(key, { from, to, count: 1 });
    }
  }
  const boxes = [];
  number(root, boxes);
  for (const box of boxes) Object.assign(box, { edges: new Map(), ins: new Map(), outs: new Map() });
  const links = [...pairs.values()].map((pair) => link(pair));
  place(root);
  settle(root, 0, 0);
  for (const each of links) trace(each);
  return { boxes: boxes.filter((box) => box !== root), links, width: root.w, height: root.h };
}

let boxNumber = 0;

// Which box stands for each node.
function show(item, root, visible) {
  item.id = ++boxNumber;
  if (item.children && item.open) {
    for (const child of item.children) show(child, root, visible);
  } else {
    everyLeaf(item, (leaf) => visible.set(leaf.node.i, item));
  }
}

function number(item, boxes) {
  boxes.push(item);
  if (item.children && item.open) for (const child of item.children) number(child, boxes);
}

// The way of an edge: from its box out through the groups around it, across, and in again.
function link({ from, to, count }) {
  const above = new Set();
  for (let group = from.parent; group; group = group.parent) above.add(group);
  let common = to.parent;
  while (!above.has(common)) common = common.parent;
  const out = [];
  let a = from;
  for (; a.parent !== common; a = a.parent) out.push([a.parent, port(a.parent.outs, a)]);
  const into = [];
  let b = to;
  for (; b.parent !== common; b = b.parent) into.push([b.parent, port(b.parent.ins, b)]);
  const key = a.id + "," + b.id;
  if (!common.edges.has(key)) common.edges.set(key, { a, b });
  return { from, to, count, out, into, across: common.edges.get(key) };
}

// Where edges of a child of an open group cross its border.
function port(ports, child) {
  if (!ports.has(child)) ports.set(child, { child, w: 1, h: 0, port: true });
  return ports.get(child);
}

// Gives an item its size, and what is in it places from its corner.
function place(item) {
  if (!item.children || !item.open) {
    item.w = boxWidth(item);
    item.h = LEAF_HEIGHT;
    return;
  }
  for (const child of item.children) place(child);
  const ins = [...item.ins.values()];
  const outs = [...item.outs.values()];
  const cells = [...item.children, ...ins, ...outs].map((box) => ({ box, w: box.w, h: box.h, up: [], down: [] }));
  const cellOf = new Map(cells.map((cell) => [cell.box, cell]));
  const edges = [...item.edges.values()];
  const joins = [];
  for (const edge of edges) {
    const forward = edge.a.first < edge.b.first || (edge.a.first === edge.b.first && edge.a.id < edge.b.id);
    const [from, to] = forward ? [edge.a, edge.b] : [edge.b, edge.a];
    joins.push({ edge, forward, from: cellOf.get(from), to: cellOf.get(to) });
  }
  for (const each of ins) joins.push({ edge: each, forward: true, from: cellOf.get(each), to: cellOf.get(each.child) });
  for (const each of outs) joins.push({ edge: each, forward: true, from: cellOf.get(each.child), to: cellOf.get(each) });
  const layers = layersOf(cells, joins, ins.map((each) => cellOf.get(each)), outs.map((each) => cellOf.get(each)));
  for (const join of joins) join.cells = withBends(join, layers);
  order(layers);
  spread(layers);
  item.w = finish(item, layers);
  for (const { edge, forward, cells: way } of joins) {
    const points = way.map((cell) => [cell.x, cell.y, cell.h]);
    edge.bends = (forward ? points : points.reverse()).slice(1, -1);
  }
}

// Layers by the longest way from a source; a source is then brought near what uses it.
function layersOf(cells, joins, ins, outs) {
  for (const { from, to } of joins) {
    from.down.push(to);
    to.up.push(from);
  }
  const rank = (cell) => {
    if (cell.layer === undefined) {
      cell.layer = 0;
      for (const above of cell.up) cell.layer = Math.max(cell.layer, rank(above) + 1);
    }
    return cell.layer;
  };
  for (const cell of cells) rank(cell);
  const first = ins.length ? 1 : 0;
  for (const cell of cells) if (!ins.includes(cell) && !cell.up.length) cell.layer = Math.max(cell.layer, first);
  for (const cell of cells) {
    if (!cell.up.length && cell.down.length && !ins.includes(cell)) {
      cell.layer = Math.max(cell.layer, Math.min(...cell.down.map((below) => below.layer)) - 1);
    }
  }
  const last = Math.max(0, ...cells.filter((cell) => !outs.includes(cell)).map((cell) => cell.layer)) + 1;
  for (const cell of outs) cell.layer = last;
  const layers = [];
  for (const cell of cells) (layers[cell.layer] = layers[cell.layer] || []).push(cell);
  for (const cell of cells) cell.up = cell.down = null;
  return Array.from(layers, (layer) => layer || []);
}

// An edge over several layers bends in each of them.
function withBends({ from, to }, layers) {
  const way = [from];
  for (let layer = from.layer + 1; layer < to.layer; layer++) {
    const bend = { layer, w: 6, h: 0, bend: true };
    layers[layer].push(bend);
    way.push(bend);
  }
  way.push(to);
  for (let i = 1; i < way.length; i++) {
    (way[i - 1].down = way[i - 1].down || []).push(way[i]);
    (way[i].up = way[i].up || []).push(way[i - 1]);
  }
  return way;
}

// Sorts layers so that few edges cross: each cell to the middle of its neighbours, again and again.
function order(layers) {
  const count = () => layers.forEach((layer) => layer.forEach((cell, i) => (cell.at = i)));
  count();
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const down = sweep % 2 === 0;
    const sides = down ? layers : [...layers].reverse();
    for (const layer of sides) {
      for (const cell of layer) {
        const near = (down ? cell.up : cell.down) || [];
        cell.wish = near.length ? near.reduce((sum, other) => sum + other.at, 0) / near.length : cell.at;
      }
      layer.sort((a, b) => a.wish - b.wish || a.at - b.at);
      layer.forEach((cell, i) => (cell.at = i));
    }
  }
}

// Gives cells `x`, the middle: near their neighbours, in their order, apart from each other.
function spread(layers) {
  for (const layer of layers) {
    let x = 0;
    for (const cell of layer) {
      cell.x = x + cell.w / 2;
      x += cell.w + GAP_X;
    }
    const half = x / 2;
    for (const cell of layer) cell.x -= half;
  }
  for (let sweep = 0; sweep < 2 * SWEEPS; sweep++) {
    const down = sweep % 2 === 0;
    const sides = down ? layers : [...layers].reverse();
    for (const layer of sides) {
      for (const cell of layer) {
        const near = sweep >= 2 * SWEEPS - 2 ? [...(cell.up || []), ...(cell.down || [])] : (down ? cell.up : cell.down) || [];
        cell.wish = near.length ? median(near.map((other) => other.x)) : cell.x;
        // Straight edges are worth more than centred boxes.
        cell.weight = cell.bend ? 4 : 1;
      }
      apart(layer);
    }
  }
}

function median(values) {
  values.sort((a, b) => a - b);
  const middle = values.length >> 1;
  return values.length % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// The places nearest to the wished ones (least squares) that keep order and distance: pools of adjacent violators.
function apart(layer) {
  const pools = [];
  let offset = 0;
  layer.forEach((cell, i) => {
    if (i > 0) offset += (layer[i - 1].w + cell.w) / 2 + GAP_X;
    let pool = { sum: (cell.wish - offset) * cell.weight, weight: cell.weight, cells: [[cell, offset]] };
    while (pools.length && pools[pools.length - 1].sum / pools[pools.length - 1].weight > pool.sum / pool.weight) {
      const before = pools.pop();
      before.cells.push(...pool.cells);
      pool = { sum: before.sum + pool.sum, weight: before.weight + pool.weight, cells: before.cells };
    }
    pools.push(pool);
  });
  for (const pool of pools) for (const [cell, shift] of pool.cells) cell.x = pool.sum / pool.weight + shift;
}

// Heights of layers, and corners of boxes.
function finish(item, layers) {
  let left = Infinity;
  let right = -Infinity;
  for (const layer of layers) {
    for (const cell of layer) {
      left = Math.min(left, cell.x - cell.w / 2);
      right = Math.max(right, cell.x + cell.w / 2);
    }
  }
  if (left === Infinity) left = right = 0;
  const width = Math.max(right - left + 2 * PAD, 40 + 6.6 * Math.min(item.label.length, 40));
  const shift = (width - right - left) / 2;
  const root = item.parent === null;
  let y = root ? PAD : HEAD + 8;
  layers.forEach((layer, l) => {
    const edge = layer.length > 0 && layer.every((cell) => cell.box && cell.box.port);
    const height = Math.max(0, ...layer.map((cell) => cell.h));
    if (edge) y = l === 0 ? HEAD : y - GAP_Y / 2;
    for (const cell of layer) {
      cell.x += shift;
      cell.y = y + (height - cell.h) / 2;
      if (cell.box) Object.assign(cell.box, { x: cell.x - cell.w / 2, y: cell.y });
    }
    y += height + (edge && l === 0 ? 8 : GAP_Y);
  });
  item.h = Math.max(HEAD + PAD, y - GAP_Y + PAD);
  for (const each of item.outs.values()) each.y = item.h;
  for (const each of item.ins.values()) each.y = 0;
  return width;
}

// From places within the group to places in the drawing.
function settle(item, x, y) {
  item.X = x;
  item.Y = y;
  if (!item.children || !item.open) return;
  for (const child of item.children) settle(child, x + child.x, y + child.y);
}

// The points of an edge.
function trace(each) {
  const { from, to, out, into, across } = each;
  const points = [[from.X + from.w / 2, from.Y + from.h]];
  const add = (group, bends) => {
    for (const [x, y, h] of bends || []) points.push([group.X + x, group.Y + y], ...(h ? [[group.X + x, group.Y + y + h]] : []));
  };
  for (const [group, gate] of out) {
    add(group, gate.bends);
    points.push([group.X + gate.x, group.Y + gate.y]);
  }
  add(across.a.parent, across.bends);
  for (const [group, gate] of [...into].reverse()) {
    points.push([group.X + gate.x, group.Y + gate.y]);
    add(group, gate.bends);
  }
  points.push([to.X + to.w / 2, to.Y]);
  each.points = points;
  each.box = points.reduce(
    (box, [x, y]) => [Math.min(box[0], x), Math.min(box[1], y), Math.max(box[2], x), Math.max(box[3], y)],
    [Infinity, Infinity, -Infinity, -Infinity],
  );
}

// Draws what lies in the window: boxes and edges outside of it, or too small to read, are no elements.

const MARGIN = 200;
const READABLE = 0.45;
// Share of the hot colour in the hottest box, in percent: text stays readable on it.
const HOTTEST = 68;

// What a box is coloured by: a number from 0 to 1 (`heat`), or a class of its own (`tone`).
const COLOURINGS = {
  time: {
    title: "time",
    usable: () => measured,
    heat: (item) => Math.sqrt(heatTime(item) / Math.max(1, totalTime)),
  },
  operator: { title: "operator", usable: () => true, tone: (item) => (item.children ? null : toneOf(item.node.op)) },
  fate: { title: "what became of it", usable: () => report.parts.length > 0, tone: (item) => (item.children ? null : "fate" + item.node.fate) },
  roofline: {
    title: "distance from the roofline",
    usable: () => steps.some((step) => step.roof !== null),
    heat: (item) => {
      const step = stepOf(item);
      return step && step.roof !== null ? Math.max(0, 1 - step.roof / 1000) : 0;
    },
  },
  error: {
    title: "difference",
    usable: () => Boolean(report.errors),
    heat: (item) => (item.error > 0 ? Math.min(1, Math.max(0.04, (Math.log10(item.error) + 9) / 9)) : 0),
  },
};

// A node in a kernel has the time of the kernel: it cannot be told apart.
function heatTime(item) {
  if (item.children) return item.time;
  return item.node.steps.reduce((sum, step) => sum + (steps[step].ns || 0), 0);
}

function stepOf(item) {
  if (item.kind === "kernel") return steps[item.step];
  return item.children || !item.node.steps.length ? null : steps[item.node.steps[0]];
}

const tones = new Map();
// One of twelve colours for each operator, in the order of their numbers.
function toneOf(op) {
  if (!tones.size) {
    const counts = new Map();
    for (const node of nodes) if (node.fate !== EDGE) counts.set(node.op, (counts.get(node.op) || 0) + 1);
    const ops = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
    ops.forEach(([op], i) => tones.set(op, "tone" + Math.min(i, 11)));
  }
  return tones.get(op) || null;
}

function shortened(text, width, character) {
  const room = Math.max(3, Math.floor((width - 16) / character));
  return text.length <= room ? text : "…" + text.slice(text.length - room + 1);
}

// The second line of a box.
function remark(item) {
  const share = measured && item.time > 0 ? formatShare(item.time / totalTime) : "";
  if (item.children) return [item.count + " nodes", share].filter(Boolean).join(" · ");
  const node = item.node;
  if (node.fate === EDGE) return node.type || node.op;
  const plain = (text) => text.toLowerCase().replace(/[^a-z0-9]/g, "");
  return [plain(node.op) === plain(item.label) ? "" : item.label, share].filter(Boolean).join(" · ") || item.label;
}

const headline = (item) => (item.children || item.node.fate === EDGE ? item.label : item.node.op);

function spoken(item) {
  const parts = [headline(item), remark(item)];
  if (item.unsupported) parts.push("not supported");
  if (item.error > 0) parts.push("relative difference " + formatError(item.error));
  return parts.join(", ");
}

class Drawing {
  constructor(canvas) {
    this.canvas = canvas;
    this.view = { x: 0, y: 0, scale: 1 };
    this.layers = ["frames", "edges", "boxes"].map((name) => svg("g", { class: name, role: "presentation" }));
    this.stage = svg("g", { role: "presentation" }, ...this.layers);
    canvas.append(this.stage);
    this.made = new Map();
    this.colouring = "time";
    this.lit = new Set();
  }

  set(laid) {
    this.laid = laid;
    for (const made of this.made.values()) made.remove();
    this.made.clear();
    this.refresh();
  }

  size() {
    const { clientWidth, clientHeight } = this.canvas;
    return [clientWidth || 800, clientHeight || 600];
  }

  fit() {
    const [width, height] = this.size();
    const scale = Math.min(1.1, (width - 32) / this.laid.width, (height - 32) / this.laid.height);
    // A long graph begins at its top, as wide as can be read.
    const readable = Math.max(scale, Math.min(0.9, (width - 32) / this.laid.width), 0.12);
    this.view = { scale: readable, x: (width - this.laid.width * readable) / 2, y: Math.max(16, (height - this.laid.height * readable) / 2) };
    this.moved();
  }

  // Keeps a point of the window where it is.
  zoom(factor, x, y) {
    const view = this.view;
    const scale = Math.min(3, Math.max(0.02, view.scale * factor));
    view.x = x - ((x - view.x) * scale) / view.scale;
    view.y = y - ((y - view.y) * scale) / view.scale;
    view.scale = scale;
    this.moved();
  }

  // Brings a box into the window.
  reveal(box) {
    const [width, height] = this.size();
    const view = this.view;
    if (view.scale < READABLE) view.scale = READABLE + 0.2;
    const tall = Math.min(box.h * view.scale, height * 0.5);
    const x = view.x + (box.X + box.w / 2) * view.scale;
    const y = view.y + box.Y * view.scale + tall / 2;
    const away = (at, room, size) => (at - size / 2 < 24 || at + size / 2 > room - 24 ? room / 2 - at : 0);
    view.x += away(x, width, Math.min(box.w * view.scale, width * 0.5));
    view.y += away(y, height, tall);
    this.moved();
  }

  moved() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null;
      this.refresh();
    });
  }

  refresh() {
    const { x, y, scale } = this.view;
    this.stage.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)}) scale(${scale.toFixed(4)})`);
    this.canvas.classList.toggle("far", scale < READABLE);
    const [width, height] = this.size();
    const window = [(-x - MARGIN) / scale, (-y - MARGIN) / scale, (width - x + MARGIN) / scale, (height - y + MARGIN) / scale];
    const meets = (left, top, right, bottom) => left < window[2] && right > window[0] && top < window[3] && bottom > window[1];
    const seen = new Set();
    for (const box of this.laid.boxes) {
      if (meets(box.X, box.Y, box.X + box.w, box.Y + box.h)) seen.add(box);
    }
    for (const edge of this.laid.links) if (meets(...edge.box)) seen.add(edge);
    for (const [item, made] of this.made) {
      if (!seen.has(item) && item !== this.selected) {
        made.remove();
        this.made.delete(item);
      }
    }
    for (const item of seen) if (!this.made.has(item)) this.make(item);
  }

  make(item) {
    const [frames, edges, boxes] = this.layers;
    const made = item.points ? this.edge(item) : this.box(item);
    (item.points ? edges : item.open ? frames : boxes).append(made);
    this.made.set(item, made);
  }

  edge({ points, from, to }) {
    let path = "";
    points.forEach(([x, y], i) => {
      if (i === 0) path = `M${x.toFixed(1)} ${y.toFixed(1)}`;
      else {
        const [u, v] = points[i - 1];
        const middle = ((v + y) / 2).toFixed(1);
        path += u === x ? `V${y.toFixed(1)}` : `C${u.toFixed(1)} ${middle} ${x.toFixed(1)} ${middle} ${x.toFixed(1)} ${y.toFixed(1)}`;
      }
    });
    const near = this.selected && (from === this.selected || to === this.selected);
    return svg("path", { d: path, class: near ? "near" : "", "marker-end": "url(#arrow)" });
  }

  box(item) {
    const width = item.w;
    const classes = ["box", item.kind, item.open ? "open" : ""];
    if (!item.children && item.node.fate === EDGE) classes.push("edge");
    if (!item.children && (item.node.fate === 1 || item.node.fate === 2) && report.parts.length) classes.push("silent");
    if (item.unsupported) classes.push("refused");
    if (report.errors && !item.children && item.node.i === report.errors.first) classes.push("first");
    const { heat, tone } = COLOURINGS[this.colouring];
    const toned = tone && !item.open ? tone(item) : null;
    if (toned) classes.push(toned);
    if (item === this.selected) classes.push("selected");
    if (this.lit.has(item)) classes.push("lit");
    const group = svg("g", {
      class: classes.filter(Boolean).join(" "),
      transform: `translate(${item.X.toFixed(1)} ${item.Y.toFixed(1)})`,
      role: "treeitem",
      id: "box" + item.id,
      "aria-label": spoken(item),
      "aria-expanded": item.children ? String(item.open) : null,
      "aria-selected": String(item === this.selected),
      "data-id": item.id,
    });
    if (heat && !item.open) group.style.setProperty("--heat", (HOTTEST * Math.min(1, heat(item))).toFixed(1) + "%");
    group.append(svg("rect", { width, height: item.h, rx: item.open ? 10 : 7 }));
    if (item.children && !item.open) group.append(svg("rect", { class: "stack", x: 4, y: item.h, width: width - 8, height: 3, rx: 1.5 }));
    const mark = item.children ? (item.open ? "▾ " : "▸ ") : "";
    const title = svg("text", { class: "title", x: item.open ? 12 : width / 2, y: item.open ? 19 : 17 });
    title.textContent = mark + shortened(headline(item), width - (mark ? 14 : 0), 7.2);
    group.append(title);
    if (!item.open) {
      const line = svg("text", { class: "line", x: width / 2, y: 31 });
      line.textContent = shortened(remark(item), width, 5.5);
      group.append(line);
    } else {
      const line = svg("text", { class: "line", x: width - 12, y: 19 });
      if (width > 150 + 6.6 * headline(item).length) line.textContent = remark(item);
      group.append(line);
    }
    const tip = svg("title");
    tip.textContent = item.children ? item.label : item.node.name + (item.node.type ? "\n" + item.node.type : "");
    group.append(tip);
    return group;
  }

  // Makes elements anew that look different now.
  renew(items) {
    for (const item of items) {
      const old = this.made.get(item);
      if (!old) continue;
      const made = item.points ? this.edge(item) : this.box(item);
      old.replaceWith(made);
      this.made.set(item, made);
    }
  }
}

// The graph as it is used: folding, selection, keys, search.

class GraphView {
  constructor() {
    this.canvas = document.getElementById("canvas");
    const arrow = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto-start-reverse" });
    arrow.append(svg("path", { d: "M0 0.8 8 4 0 7.2z" }));
    this.canvas.append(svg("defs", {}, arrow));
    this.drawing = new Drawing(this.canvas);
    this.trees = {};
    this.group("scope");
    this.pointer();
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  group(by) {
    this.by = by;
    this.trees[by] = this.trees[by] || (by === "kernel" ? treeByKernel() : treeByScope());
    this.root = this.trees[by];
    this.leaves = new Map();
    everyLeaf(this.root, (leaf) => this.leaves.set(leaf.node.i, leaf));
    const selected = this.drawing.selected;
    this.drawing.selected = null;
    this.drawing.lit = new Set();
    this.layOut();
    this.drawing.fit();
    this.drawing.refresh();
    if (selected && !selected.children) this.selectNode(selected.node.i);
    else showDetails(null);
  }

  layOut() {
    const laid = layOut(this.root);
    this.byId = new Map(laid.boxes.map((box) => [box.id, box]));
    this.next = new Map(laid.boxes.map((box) => [box, { down: [], up: [] }]));
    for (const { from, to } of laid.links) {
      this.next.get(from).down.push(to);
      this.next.get(to).up.push(from);
    }
    this.drawing.set(laid);
  }

  colour(by) {
    this.drawing.colouring = by;
    this.drawing.renew([...this.drawing.made.keys()].filter((item) => !item.points));
  }

  // Folds or unfolds, with the box at the same place of the window.
  toggle(item) {
    if (!item.children || item === this.root) return;
    const before = [item.X, item.Y];
    item.open = !item.open;
    const view = this.drawing.view;
    this.layOut();
    view.x += (before[0] - item.X) * view.scale;
    view.y += (before[1] - item.Y) * view.scale;
    this.drawing.refresh();
    this.select(item);
  }

  select(item) {
    const { drawing } = this;
    const changed = new Set([drawing.selected, item, ...drawing.lit].filter(Boolean));
    const touched = (end) => drawing.laid.links.filter((link) => link.from === end || link.to === end);
    for (const link of [...touched(drawing.selected), ...touched(item)]) changed.add(link);
    drawing.selected = item;
    // What the same kernel computes.
    drawing.lit = new Set();
    if (item && !item.children) {
      for (const step of item.node.steps) for (const at of steps[step].nodes) drawing.lit.add(this.leaves.get(at));
      drawing.lit.delete(item);
    }
    for (const other of drawing.lit) changed.add(other);
    if (item && !drawing.made.has(item)) drawing.make(item);
    drawing.renew([...changed]);
    if (item) this.canvas.setAttribute("aria-activedescendant", "box" + item.id);
    else this.canvas.removeAttribute("aria-activedescendant");
    showDetails(item);
  }

  // Unfolds what hides a node, and selects it.
  selectNode(at) {
    const leaf = this.leaves.get(at);
    if (!leaf) return;
    let hidden = false;
    for (let group = leaf.parent; group; group = group.parent) {
      hidden = hidden || !group.open;
      group.open = true;
    }
    if (hidden) this.layOut();
    this.select(leaf);
    this.drawing.reveal(leaf);
    if (document.getElementById("graph").getBoundingClientRect().bottom < 80) document.getElementById("graph").scrollIntoView();
  }

  foldAll() {
    everyGroup(this.root, (group) => (group.open = group === this.root));
    this.layOut();
    this.select(null);
    this.drawing.fit();
  }

  unfoldLevel() {
    const closed = this.drawing.laid.boxes.filter((box) => box.children && !box.open);
    for (const box of closed) box.open = true;
    this.layOut();
    this.select(null);
    this.drawing.fit();
  }

  pointer() {
    const { canvas, drawing } = this;
    let from = null;
    canvas.addEventListener("pointerdown", (event) => {
      from = { x: event.clientX, y: event.clientY, view: { ...drawing.view }, far: false };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!from) return;
      const [dx, dy] = [event.clientX - from.x, event.clientY - from.y];
      if (!from.far && Math.hypot(dx, dy) < 4) return;
      if (!from.far) canvas.setPointerCapture(event.pointerId);
      from.far = true;
      drawing.view.x = from.view.x + dx;
      drawing.view.y = from.view.y + dy;
      drawing.moved();
    });
    canvas.addEventListener("pointerup", (event) => {
      const dragged = from && from.far;
      from = null;
      if (dragged) return;
      const hit = event.target.closest("[data-id]");
      const item = hit && this.byId.get(Number(hit.dataset.id));
      // Frames of open groups are the background of what is in them, except their heads.
      const head = item && item.open && (event.clientY - canvas.getBoundingClientRect().top - drawing.view.y) / drawing.view.scale - item.Y < HEAD;
      if (item && item.children && (!item.open || head)) this.toggle(item);
      else this.select(item || null);
    });
    canvas.addEventListener("pointercancel", () => (from = null));
    canvas.addEventListener(
      "wheel",
      (event) => {
        // The page scrolls until the graph is used.
        if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
        event.preventDefault();
        const { left, top } = canvas.getBoundingClientRect();
        drawing.zoom(Math.exp(-event.deltaY * 0.0016), event.clientX - left, event.clientY - top);
      },
      { passive: false },
    );
  }

  centre(factor) {
    const [width, height] = this.drawing.size();
    this.drawing.zoom(factor, width / 2, height / 2);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const item = this.drawing.selected;
    const actions = {
      Enter: () => item && this.toggle(item),
      " ": () => item && this.toggle(item),
      ArrowDown: () => this.step("down"),
      ArrowUp: () => this.step("up"),
      ArrowLeft: () => this.beside(-1),
      ArrowRight: () => this.beside(1),
      Escape: () => (item && item.parent && item.parent !== this.root ? this.go(item.parent) : this.select(null)),
      "+": () => this.centre(1.25),
      "=": () => this.centre(1.25),
      "-": () => this.centre(0.8),
      0: () => this.drawing.fit(),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  go(item) {
    if (!item) return;
    this.select(item);
    this.drawing.reveal(item);
  }

  // Along an edge, to the box that is nearest in the order of data flow; from a frame into it.
  step(direction) {
    const item = this.drawing.selected;
    if (!item) return this.go(this.first());
    if (item.open && direction === "down") return this.go(item.children[0]);
    const near = [...this.next.get(item)[direction]].sort((a, b) => a.first - b.first);
    if (near.length) this.go(direction === "down" ? near[0] : near[near.length - 1]);
    else if (direction === "up" && item.parent !== this.root) this.go(item.parent);
  }

  first() {
    return this.drawing.laid.boxes.reduce((a, b) => (a && a.first <= b.first ? a : b), null);
  }

  // The next box to the left or right at about the same height.
  beside(direction) {
    const item = this.drawing.selected;
    if (!item) return this.go(this.first());
    const middle = (box) => [box.X + box.w / 2, box.Y + Math.min(box.h, LEAF_HEIGHT) / 2];
    const [x, y] = middle(item);
    let found = null;
    let least = Infinity;
    for (const box of this.drawing.laid.boxes) {
      if (box.open || box === item) continue;
      const [u, v] = middle(box);
      const distance = Math.abs(u - x) + 6 * Math.abs(v - y);
      if ((u - x) * direction > 1 && Math.abs(v - y) < 60 && distance < least) [found, least] = [box, distance];
    }
    this.go(found);
  }
}

// The field that finds nodes by name and operator.
function searching(graph) {
  const MOST_FOUND = 40;
  const field = document.getElementById("search");
  const list = document.getElementById("found");
  let found = [];
  let at = -1;
  const close = () => {
    list.hidden = true;
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
  };
  const mark = (next) => {
    at = next;
    [...list.children].forEach((child, i) => child.setAttribute("aria-selected", String(i === at)));
    if (at >= 0) {
      field.setAttribute("aria-activedescendant", "found" + at);
      list.children[at].scrollIntoView({ block: "nearest" });
    }
  };
  const take = (i) => {
    const node = found[i];
    if (node === undefined) return;
    close();
    graph.selectNode(node);
    graph.canvas.focus({ preventScroll: true });
  };
  const look = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = [];
    let all = 0;
    if (words.length) {
      for (const node of nodes) {
        const text = (node.name + " " + node.op).toLowerCase();
        if (!words.every((word) => text.includes(word))) continue;
        all++;
        if (found.length < MOST_FOUND) found.push(node.i);
      }
    }
    list.replaceChildren(
      ...found.map((i, n) => element("li", { role: "option", id: "found" + n, "aria-selected": "false", onpointerdown: (event) => (event.preventDefault(), take(n)) }, nodes[i].name, element("small", {}, nodes[i].op))),
    );
    if (all > found.length) list.append(element("li", { class: "more", role: "presentation" }, `${all - found.length} more`));
    if (words.length && !all) list.append(element("li", { class: "more", role: "presentation" }, "nothing found"));
    list.hidden = !words.length;
    field.setAttribute("aria-expanded", String(!list.hidden));
    mark(found.length ? 0 : -1);
  };
  field.addEventListener("input", look);
  field.addEventListener("focus", look);
  field.addEventListener("blur", close);
  field.addEventListener("keydown", (event) => {
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (moves[event.key] && found.length) mark((at + moves[event.key] + found.length) % found.length);
    else if (event.key === "Enter") take(at);
    else if (event.key === "Escape") {
      field.value = "";
      close();
      graph.canvas.focus({ preventScroll: true });
    } else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest && event.target.closest("input, textarea, select");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    field.focus();
    field.select();
  });
}

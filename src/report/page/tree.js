// Groups that fold: by the scopes in the names of nodes, or by the kernels that nodes became. A list that is too long to show is
// divided into runs of neighbours in the order of data flow.

// Children of a group at most, boxes that are shown at first at most, and fewer than which a long group is opened, too.
const MOST_CHILDREN = 64;
const FIRST_BOXES = 36;
const FEW_BOXES = 8;
// Nodes between the first and the last of a scope for each of its own, at most.
const MOST_SPREAD = 2.5;

// The scopes of a name, and what is left of it: `/` parts, or `.` where there is none.
function pathOf(name) {
  const mark = name.includes("/") ? "/" : ".";
  const parts = name.split(mark).filter((part) => part !== "");
  return parts.length ? parts : [name];
}

// The scopes of a node and its own label. Those of a body are beside the branch or loop that runs it.
function scopesOf(node) {
  const path = node.fate === EDGE ? [node.name] : pathOf(node.name);
  if (!node.body) return path;
  const flow = nodes[node.body.flow];
  const around = scopesOf(flow);
  const group = `${around.pop()}: ${node.body.label}`;
  // What the name shares with that of the branch or loop is said by the groups around it.
  const shared = pathOf(flow.name).slice(0, -1);
  const other = shared.findIndex((scope, depth) => scope !== path[depth]);
  const own = path.slice(Math.min(other < 0 ? shared.length : other, path.length - 1));
  return [...around, group, ...own];
}

const makeGroup = (label, parent) => ({ label, parent, children: [], open: false, kind: "scope" });
const makeLeaf = (node, label, parent) => ({ label, parent, node, children: null, kind: "node" });

function treeByScope() {
  const root = makeGroup("", null);
  const known = new Map([["", root]]);
  for (const node of nodes) {
    let group = root;
    const path = scopesOf(node);
    for (let depth = 1; depth < path.length; depth++) {
      const key = path.slice(0, depth).join("/");
      let next = known.get(key);
      if (!next) {
        next = makeGroup(path[depth - 1], group);
        known.set(key, next);
        group.children.push(next);
      }
      group = next;
    }
    group.children.push(makeLeaf(node, path[path.length - 1], group));
  }
  dissolve(root);
  joinChains(root);
  return finished(root);
}

// A scope whose nodes are scattered over the order of data flow, such as one of all nodes of an operator, is no part of the
// model: its items belong to the scope around it. Returns first and last node and number of nodes.
function dissolve(group) {
  const children = [];
  const all = { first: Infinity, last: -1, count: 0 };
  for (const child of group.children) {
    const of = child.children ? dissolve(child) : { first: child.node.i, last: child.node.i, count: 1 };
    all.first = Math.min(all.first, of.first);
    all.last = Math.max(all.last, of.last);
    all.count += of.count;
    if (child.children && of.count > 1 && of.last - of.first + 1 > MOST_SPREAD * of.count) {
      for (const inner of child.children) {
        inner.label = child.label + (inner.node && !inner.node.name.includes("/") ? "." : "/") + inner.label;
        inner.parent = group;
        children.push(inner);
      }
    } else children.push(child);
  }
  group.children = children;
  return all;
}

// A scope that holds one scope and nothing else is one with it.
function joinChains(group) {
  for (const child of group.children) {
    if (!child.children) continue;
    while (child.children.length === 1) {
      const only = child.children[0];
      if (!only.children) break;
      child.label += "/" + only.label;
      child.children = only.children;
    }
    for (const inner of child.children) inner.parent = child;
    joinChains(child);
  }
}

function treeByKernel() {
  const root = makeGroup("", null);
  const groups = new Map();
  for (const node of nodes) {
    const step = node.steps.find((at) => steps[at].nodes.length > 1);
    if (step === undefined) {
      root.children.push(makeLeaf(node, shortName(node.name), root));
      continue;
    }
    let group = groups.get(step);
    if (!group) {
      group = makeGroup(steps[step].kind, root);
      group.kind = "kernel";
      group.step = step;
      groups.set(step, group);
      root.children.push(group);
    }
    group.children.push(makeLeaf(node, shortName(node.name), group));
  }
  return finished(root);
}

const shortName = (name) => {
  const path = pathOf(name);
  return path[path.length - 1];
};

// Sums, runs of long lists, and which groups are open at first.
function finished(root) {
  sum(root);
  divide(root);
  sum(root);
  root.open = true;
  let shown = root.children.length;
  const closed = root.children.filter((child) => child.children);
  while (closed.length) {
    closed.sort((a, b) => a.children.length - b.children.length || a.first - b.first);
    const next = closed.shift();
    if (shown >= FEW_BOXES && shown + next.children.length - 1 > FIRST_BOXES) break;
    next.open = next.kind !== "kernel";
    if (!next.open) continue;
    shown += next.children.length - 1;
    closed.push(...next.children.filter((child) => child.children));
  }
  return root;
}

// Where a group begins in the order of data flow, how many nodes it holds, and the time and error of them.
function sum(item) {
  if (!item.children) {
    const node = item.node;
    item.first = node.i;
    item.count = 1;
    item.time = 0;
    item.unsupported = node.fate === UNSUPPORTED ? 1 : 0;
    item.error = node.error ? node.error.relative : -1;
    for (const step of node.steps) if (steps[step].anchor === node.i) item.time += steps[step].ns || 0;
    return;
  }
  Object.assign(item, { first: Infinity, count: 0, time: 0, unsupported: 0, error: -1 });
  for (const child of item.children) {
    sum(child);
    item.first = Math.min(item.first, child.first);
    item.count += child.count;
    item.time += child.time;
    item.unsupported += child.unsupported;
    item.error = Math.max(item.error, child.error);
  }
}

// What a run begins or ends with.
const bound = (item) => (item.kind === "kernel" ? pathOf(steps[item.step].name).slice(-2).join("/") : item.label.split(" … ")[0]);

function divide(group) {
  for (const child of group.children) if (child.children) divide(child);
  group.children.sort((a, b) => a.first - b.first);
  if (group.children.length <= MOST_CHILDREN) return;
  const runs = Math.min(MOST_CHILDREN, Math.ceil(Math.sqrt(group.children.length)));
  const size = Math.ceil(group.children.length / runs);
  const all = group.children;
  group.children = [];
  for (let at = 0; at < all.length; at += size) {
    const some = all.slice(at, at + size);
    const run = makeGroup(bound(some[0]) + " … " + bound(some[some.length - 1]), group);
    run.kind = "run";
    run.children = some;
    for (const child of some) child.parent = run;
    group.children.push(run);
    divide(run);
  }
}

function everyGroup(group, visit) {
  visit(group);
  for (const child of group.children) if (child.children) everyGroup(child, visit);
}

function everyLeaf(item, visit) {
  if (!item.children) return visit(item);
  for (const child of item.children) everyLeaf(child, visit);
}

// What is selected, in words: a node with its kernel, a group, a kernel.

const details = document.getElementById("details");

function link_to(node, text) {
  return element("button", { type: "button", class: "link", onclick: () => graph.selectNode(node) }, text);
}

function rows(pairs) {
  const list = element("dl");
  for (const [name, value] of pairs) {
    if (value === null || value === "" || (Array.isArray(value) && !value.length)) continue;
    list.append(element("dt", {}, name), element("dd", {}, ...(Array.isArray(value) ? value : [value])));
  }
  return list;
}

function nodeList(all, most = 12) {
  const shown = all.slice(0, most).map((at) => element("div", {}, link_to(at, nodes[at].name), " ", element("small", {}, nodes[at].op)));
  if (all.length > most) shown.push(element("div", {}, `and ${all.length - most} more`));
  return shown;
}

function stepRates(step) {
  if (step.ns === null) return [];
  const share = totalTime ? formatShare(step.ns / totalTime) : "";
  return [
    ["time", `${formatTime(step.ns)} (${share} of all)`],
    ["rates", `${(step.flops / step.ns).toFixed(1)} GFLOP/s, ${(step.bytes / step.ns).toFixed(1)} GB/s`],
    ["of the roofline", step.roof === null ? null : formatShare(step.roof / 1000)],
  ];
}

function stepDetails(step) {
  return element(
    "section",
    { class: "step" },
    element("h4", {}, "Kernel ", element("code", {}, step.kind)),
    rows([
      ...stepRates(step),
      ["work", `${formatCount(step.flops)} FLOP, ${formatBytes(step.bytes)} moved`],
      ["reads", step.reads.join(", ")],
      ["writes", step.writes.join(", ")],
      [`computes ${step.nodes.length} node${step.nodes.length === 1 ? "" : "s"}`, nodeList(step.nodes)],
    ]),
  );
}

function showDetails(item) {
  details.replaceChildren();
  if (!item) {
    details.append(element("p", { class: "hint" }, "Select a node to see its kernel, its types and what passes did to it."));
    return;
  }
  if (item.children) {
    const busiest = [];
    everyLeaf(item, (leaf) => busiest.push(...leaf.node.steps.filter((at) => steps[at].anchor === leaf.node.i)));
    busiest.sort((a, b) => (steps[b].ns || 0) - (steps[a].ns || 0) || a - b);
    details.append(
      element("h3", {}, item.label),
      rows([
        ["nodes", String(item.count)],
        ["kernels", String(busiest.length)],
        ["time", measured ? `${formatTime(item.time)} (${formatShare(item.time / Math.max(1, totalTime))} of all)` : null],
        ["not supported", item.unsupported ? String(item.unsupported) : null],
        ["largest difference", item.error >= 0 ? formatError(item.error) + " relative" : null],
      ]),
    );
    if (item.kind === "kernel") details.append(stepDetails(steps[item.step]));
    else if (busiest.length) {
      const shown = busiest.slice(0, 8).map((at) => element("div", {}, link_to(steps[at].anchor, steps[at].kind), " ", element("small", {}, formatTime(steps[at].ns))));
      details.append(rows([["kernels that take longest", shown]]));
    }
    return;
  }
  const node = item.node;
  const error = node.error && `${formatError(node.error.absolute)}, relative ${formatError(node.error.relative)}, ${node.error.beyond} of ${node.error.elements} elements beyond the tolerance`;
  details.append(
    element("h3", {}, node.op),
    rows([
      ["name", element("code", {}, node.name)],
      ["type", node.type],
      ["within", node.body && [element("span", {}, `${node.body.label} of `), link_to(node.body.flow, nodes[node.body.flow].name)]],
      ["what became of it", node.fate === EDGE ? null : FATES[node.fate]],
      ["difference", error],
      ["reads", nodeList(node.args)],
      ["constants", node.constants.join(", ")],
      ["read by", nodeList(node.users)],
      ["rewrites", [...new Set(node.rules)].map((rule) => element("div", {}, rule))],
    ]),
    ...node.steps.slice(0, 6).map((at) => stepDetails(steps[at])),
  );
}

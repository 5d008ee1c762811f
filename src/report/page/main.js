// Brings the page to life. `data-ready` on the root element says that the graph can be used, and after how many milliseconds.

let graph = null;

function start() {
  if (document.getElementById("canvas")) {
    for (const hidden of document.querySelectorAll("#graph [hidden]")) if (hidden.id !== "found") hidden.hidden = false;
    graph = new GraphView();
    controls();
    searching(graph);
    if (report.errors && report.errors.first !== null) graph.selectNode(report.errors.first);
    else {
      const refused = nodes.find((node) => node.fate === UNSUPPORTED);
      if (refused) graph.selectNode(refused.i);
    }
  }
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
  // What lies further down can wait.
  setTimeout(() => {
    const table = document.getElementById("step-table");
    if (table) stepTable(table);
    const charts = [["roofline", rooflineChart], ["error-chart", errorChart]];
    for (const [id, draw] of charts) if (document.getElementById(id)) draw(document.getElementById(id));
    document.querySelectorAll(".memory").forEach(memoryChart);
    for (const row of document.querySelectorAll("[data-node]")) {
      const name = row.cells[0];
      name.replaceChildren(element("button", { type: "button", class: "link", onclick: () => graph.selectNode(Number(row.dataset.node)) }, name.textContent));
    }
    document.documentElement.dataset.complete = String(Math.round(performance.now()));
  }, 0);
}

function controls() {
  const choose = document.getElementById("colouring");
  for (const [name, { title, usable }] of Object.entries(COLOURINGS)) {
    if (usable()) choose.append(element("option", { value: name }, title));
  }
  const first = report.errors ? "error" : measured ? "time" : "operator";
  choose.value = first;
  graph.colour(first);
  choose.addEventListener("change", () => graph.colour(choose.value));
  const grouping = document.getElementById("grouping");
  if (!steps.length) grouping.parentElement.hidden = true;
  grouping.addEventListener("change", () => graph.group(grouping.value));
  const press = (id, act) => document.getElementById(id).addEventListener("click", act);
  press("fold-all", () => graph.foldAll());
  press("unfold", () => graph.unfoldLevel());
  press("fit", () => graph.drawing.fit());
  press("zoom-in", () => graph.centre(1.25));
  press("zoom-out", () => graph.centre(0.8));
  new ResizeObserver(() => graph.drawing.moved()).observe(graph.canvas);
}

start();

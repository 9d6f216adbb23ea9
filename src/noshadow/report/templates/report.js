(() => {
  "use strict";
  const engineer = document.getElementById("engineer");
  if (!engineer) return;
  for (const tools of engineer.querySelectorAll(".tools")) tools.hidden = false;

  const parts = [...engineer.querySelectorAll("details.part")];
  const fold = document.getElementById("fold");
  const label = () => { fold.textContent = parts.some((part) => part.open) ? "Fold all" : "Unfold all"; };
  fold.addEventListener("click", () => {
    const open = !parts.some((part) => part.open);
    for (const part of parts) part.open = open;
    label();
  });
  for (const part of parts) part.addEventListener("toggle", label);

  const table = document.getElementById("records");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const value = (row, column, numeric) => {
    const cell = row.cells[column];
    if (!numeric) return cell.textContent.trim();
    const number = Number(cell.dataset.value ?? cell.textContent);
    return Number.isNaN(number) ? -Infinity : number;
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (!head.dataset.sort) return;
    const numeric = head.dataset.sort === "number";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === (numeric ? "descending" : "ascending") ? !numeric : numeric;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      const compare = new Intl.Collator("en", { numeric: true }).compare;
      rows.sort((a, b) => {
        const [x, y] = [value(a, column, numeric), value(b, column, numeric)];
        return sign * (numeric ? x - y || 0 : compare(x, y));
      });
      body.append(...rows);
    });
  });

  const filter = document.getElementById("filter");
  const band = document.getElementById("band");
  const count = document.getElementById("count");
  const show = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word)) || Boolean(band && band.value && row.dataset.band !== band.value);
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = `${shown} of ${rows.length} shown`;
  };
  filter.addEventListener("input", show);
  if (band) band.addEventListener("change", show);
  show();
})();

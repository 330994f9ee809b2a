// Tables and figures: what their markup alone cannot say.
/** Columns of numbers are set flush right; boxes that scroll can be reached with the keyboard. */
function tidyTables() {
  for (const table of document.querySelectorAll("figure.table table")) {
    const rows = [...table.tBodies[0].rows];
    [...table.tHead.rows[0].cells].forEach((head, i) => {
      const cells = rows.map((row) => row.cells[i]).filter(Boolean);
      const numeric = cells.length && cells.every((cell) => /^[–\-\d(]|^$/.test(cell.textContent.trim()));
      for (const cell of cells) cell.classList.toggle("prose", cell.textContent.length > 40);
      if (numeric) for (const cell of [head, ...cells]) cell.classList.add("number");
    });
  }
  for (const box of document.querySelectorAll(".scroll")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
}

/** Where the columns before the methods change, a group of rows begins; what they repeat within one is set back. */
function groupRows() {
  for (const table of document.querySelectorAll("figure.table table")) {
    const keys = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === "method");
    let before = null;
    for (const row of table.tBodies[0].rows) {
      const own = [...row.cells].slice(0, Math.max(keys, 0));
      const key = own.map((cell) => cell.textContent).join("\n");
      if (before !== null) row.classList.toggle("begins", key !== before);
      if (key === before) for (const cell of own) cell.classList.add("same");
      before = key;
    }
  }
}

/** Columns before the methods that say the same in every row: a phone has no room for them. */
function markConstants() {
  for (const table of document.querySelectorAll("figure.table table")) {
    const [head, rows] = [[...table.tHead.rows[0].cells], [...table.tBodies[0].rows]];
    const keys = head.slice(0, Math.max(0, head.findIndex((cell) => cell.textContent === "method")));
    keys.forEach((cell, i) => {
      const column = rows.map((row) => row.cells[i]);
      if (new Set(column.map((own) => own.textContent)).size > 1) return;
      for (const own of [cell, ...column]) own.classList.add("constant");
    });
  }
}

tidyTables();
groupRows();
markConstants();

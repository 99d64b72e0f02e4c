"use strict";
// The page is whole without this: it adds a filter to the tables of cases and a button that copies a command.
for (const form of document.querySelectorAll(".filter")) {
  const rows = [...document.getElementById(form.dataset.rows).tBodies[0].rows];
  const [text, only] = form.querySelectorAll("input");
  const count = form.querySelector("output");
  const show = () => {
    const wanted = text.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const fits = row.cells[0].textContent.toLowerCase().includes(wanted);
      const kept = fits && !(only.checked && row.dataset.passed === "1");
      row.hidden = !kept;
      shown += kept ? 1 : 0;
    }
    count.textContent = `${shown} of ${rows.length}`;
  };
  form.hidden = false;
  form.addEventListener("input", show);
  show();
}
for (const button of document.querySelectorAll(".command button")) {
  const code = button.parentElement.querySelector("code");
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code); // no access to the clipboard: the text is at least selected
      button.textContent = "selected";
    }
  });
}

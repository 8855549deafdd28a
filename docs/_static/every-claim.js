// The filters of the table of all claims. They are kept in the fragment of the address, which can be sent to others:
// every-claim.html#paper=zhang2023&verdict=violated
(() => {
  const form = document.querySelector(".claim-filters");
  const shown = form.querySelector("output");
  // What is searched is read once: the text of 400 rows with formulas is slow to collect at every letter.
  const rows = [...document.querySelectorAll(".every-claim tbody tr")].map((row) => [row, row.textContent.toLowerCase()]);
  const selects = [...form.querySelectorAll("select")];

  function filter() {
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const classes = selects.filter((select) => select.value).map((select) => `${select.name}-${select.value}`);
    let count = 0;
    for (const [row, text] of rows) {
      row.hidden = !(classes.every((name) => row.classList.contains(name)) && words.every((word) => text.includes(word)));
      count += !row.hidden;
    }
    shown.textContent = `${count} of ${rows.length} rows`;
  }

  // A value that no filter knows, such as one of an old link, chooses all.
  function read() {
    const chosen = new URLSearchParams(location.hash.slice(1));
    for (const select of selects) {
      const value = chosen.get(select.name) ?? "";
      select.value = [...select.options].some((option) => option.value === value) ? value : "";
    }
    form.elements.text.value = chosen.get("text") ?? "";
    filter();
  }

  function keep() {
    const chosen = new URLSearchParams([...new FormData(form)].filter(([, value]) => value.trim()));
    history.replaceState(null, "", `${location.pathname}${location.search}${String(chosen) && `#${chosen}`}`);
    filter();
  }

  form.addEventListener("input", keep);
  form.addEventListener("submit", (event) => event.preventDefault()); // Enter in the field would load the page anew
  form.addEventListener("reset", () => setTimeout(keep)); // the fields are emptied after the event
  addEventListener("hashchange", read);
  form.hidden = false;
  read();
})();

// Colours, search and copies of code. Without this script all else works.
"use strict";
(() => {
  const base = document.currentScript.src;
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");

  // The scheme that a reader chose is kept, unless the browser keeps no data.
  const kept = (value) => {
    try {
      return value === undefined ? localStorage.getItem("scheme") : localStorage.setItem("scheme", value);
    } catch {
      return null;
    }
  };
  const isDark = () => (root.dataset.scheme ?? (system.matches ? "dark" : "light")) === "dark";
  if (kept()) root.dataset.scheme = kept();

  document.addEventListener("DOMContentLoaded", () => {
    colours(document.getElementById("site-scheme"));
    search(document.getElementById("site-search"), document.getElementById("site-found"));
    copies();
    parts();
  });

  function colours(button) {
    const sources = [...document.querySelectorAll("source[media*=prefers-color-scheme]")].map((s) => [s, /dark/.test(s.media)]);
    const show = () => {
      const other = isDark() ? "light" : "dark";
      button.textContent = isDark() ? "☀" : "☾";
      button.setAttribute("aria-label", button.title = `Show ${other} colours`);
      for (const [s, dark] of sources) s.media = dark === isDark() ? "all" : "not all";
    };
    button.hidden = false;
    button.onclick = () => {
      root.dataset.scheme = isDark() ? "light" : "dark";
      kept(root.dataset.scheme);
      show();
    };
    system.addEventListener("change", show);
    show();
  }

  function search(form, list) {
    const input = form.querySelector("input");
    let loading;
    let chosen = -1;
    const load = () => loading ??= new Promise((done) => {
      const script = document.createElement("script");
      script.src = new URL("sections.js", base);
      script.onload = done;
      document.head.append(script);
    });
    const choose = (at) => {
      const items = [...list.querySelectorAll("[role=option]")];
      chosen = items.length ? (at + items.length) % items.length : -1;
      items.forEach((li, i) => li.setAttribute("aria-selected", i === chosen));
      items[chosen]?.scrollIntoView({ block: "nearest" });
      if (items[chosen]) input.setAttribute("aria-activedescendant", items[chosen].id);
      else input.removeAttribute("aria-activedescendant");
    };
    const show = async () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      await load();
      if (words.join() !== input.value.toLowerCase().split(/\s+/).filter(Boolean).join()) return; // typed on while loading
      const found = words.length ? find(words) : [];
      list.replaceChildren(...found.map((s, i) => item(s, i, words)));
      if (words.length && !found.length) list.append(Object.assign(document.createElement("li"), { textContent: "No section has all these words." }));
      open(words.length > 0);
      choose(0);
    };
    const open = (is) => {
      list.hidden = !is;
      input.setAttribute("aria-expanded", is);
    };
    form.hidden = false;
    form.onsubmit = (e) => {
      e.preventDefault();
      list.querySelectorAll("[role=option] a")[chosen]?.click();
    };
    input.onfocus = load;
    input.oninput = show;
    input.onkeydown = (e) => {
      if (e.key === "ArrowDown") choose(chosen + 1);
      else if (e.key === "ArrowUp") choose(chosen - 1);
      else if (e.key === "Escape") open(false), input.blur();
      else return;
      e.preventDefault();
    };
    list.onclick = (e) => e.target.closest("a") && open(false);
    document.addEventListener("click", (e) => form.contains(e.target) || open(false));
    document.addEventListener("keydown", (e) => {
      if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input")) return;
      e.preventDefault();
      input.focus();
      input.select();
    });
  }

  // The sections that have all words, with those first that have them in their headings, at the start of a word.
  function find(words) {
    const score = (s) => {
      let sum = 0;
      for (const word of words) {
        const at = (text, worth) => {
          const i = text.toLowerCase().indexOf(word);
          return i < 0 ? 0 : i === 0 || !/[\p{L}\p{N}]/u.test(text[i - 1]) ? worth : worth / 4;
        };
        const n = at(s.heading, 40) + at(s.page, 20) + at(s.text, 4);
        if (!n) return 0;
        sum += n;
      }
      return sum;
    };
    return sections.map((s) => [score(s), s]).filter(([n]) => n).sort((a, b) => b[0] - a[0]).slice(0, 12).map(([, s]) => s);
  }

  function item(s, i, words) {
    const li = Object.assign(document.createElement("li"), { id: `site-found-${i}` });
    li.setAttribute("role", "option");
    const a = Object.assign(document.createElement("a"), { href: new URL(s.url, base), tabIndex: -1 });
    const line = (tag, text) => {
      const e = document.createElement(tag);
      marked(e, text, words);
      a.append(e);
    };
    line("small", s.page);
    line("strong", s.heading);
    const first = Math.max(0, Math.min(...words.map((w) => s.text.toLowerCase().indexOf(w)).filter((n) => n >= 0), s.text.length) - 40);
    const from = first === 0 || first >= s.text.length - 40 ? 0 : s.text.indexOf(" ", first) + 1;
    const to = s.text.indexOf(" ", from + 150);
    line("span", (from ? "… " : "") + s.text.slice(from, to < 0 ? undefined : to) + (to < 0 ? "" : " …"));
    li.append(a);
    return li;
  }

  function marked(element, text, words) {
    const any = new RegExp(`(${words.map((w) => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "i");
    text.split(any).forEach((t, i) => element.append(i % 2 ? Object.assign(document.createElement("mark"), { textContent: t }) : t));
  }

  function copies() {
    if (!navigator.clipboard) return;
    for (const pre of document.querySelectorAll("article pre")) {
      const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "Copy" });
      button.onclick = async () => {
        await navigator.clipboard.writeText(pre.innerText.trimEnd() + "\n");
        button.textContent = "Copied";
        setTimeout(() => (button.textContent = "Copy"), 1500);
      };
      const block = Object.assign(document.createElement("div"), { className: "block" });
      pre.replaceWith(block);
      block.append(pre, button);
    }
  }

  // The list of parts marks the one that is being read. A part chosen on a phone closes the list.
  function parts() {
    for (const nav of document.querySelectorAll("[popover]")) nav.addEventListener("click", (e) => e.target.closest("a") && nav.matches(":popover-open") && nav.hidePopover());
    document.querySelector("#site-pages [aria-current]")?.scrollIntoView({ block: "nearest" });
    const links = new Map([...document.querySelectorAll("#site-parts a")].map((a) => [decodeURIComponent(a.hash.slice(1)), a]));
    const mark = () => {
      let read;
      for (const [id, a] of links) {
        a.removeAttribute("aria-current");
        if (document.getElementById(id).getBoundingClientRect().top < 120) read = a;
      }
      read?.setAttribute("aria-current", "true");
    };
    if (!links.size) return;
    addEventListener("scroll", mark, { passive: true });
    mark();
  }
})();

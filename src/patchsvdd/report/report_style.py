"""How a report looks beyond what all pages have in common, and what its buttons do."""

from __future__ import annotations

STYLE = """
.promise { margin-bottom: 1rem; padding: .875rem 1.25rem; font-size: .9375rem; }
.caveat { color: var(--warm); }
.images { margin-top: 1.75rem; }
.images > h2 { margin-bottom: .25rem; }
.images > .caption { margin: 0 0 .75rem; }
.images > ul { margin-top: .75rem; }
.picture.none { display: grid; place-items: center; color: #a2abb5; font-size: .8125rem; text-align: center;
  padding: 1rem; }

.cases { display: grid; gap: 1.25rem; }
.case { display: grid; grid-template-columns: minmax(0, 34rem) minmax(0, 1fr); align-items: start;
  background: var(--card); border: 1px solid var(--line); border-radius: 14px; overflow: hidden;
  box-shadow: var(--shadow); }
.case .picture { aspect-ratio: auto; border-top: 4px solid var(--warm-bar); height: 100%; }
.case .picture img { height: auto; }
.case .about { padding: 1.125rem 1.375rem; }
@media (max-width: 900px) { .case { grid-template-columns: minmax(0, 1fr); } }

table { border-collapse: collapse; font-size: .875rem; }
th { color: var(--soft); font-weight: 500; font-size: .8125rem; text-align: left; }
th, td { padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
.regions { width: 100%; margin-top: .875rem; }
.regions td { overflow-wrap: anywhere; }
.numbers { margin-top: .5rem; font-size: .8125rem; color: var(--soft); }
.numbers table { margin-top: .5rem; } .numbers td:last-child, .numbers th:last-child { text-align: right; }

.why { grid-column: 1 / -1; border-top: 1px solid var(--line); padding: .75rem 1.375rem; }
summary { cursor: pointer; font-weight: 600; font-size: .9375rem; }
.lead { margin-left: .75rem; font-weight: 400; font-size: .875rem; color: var(--soft); overflow-wrap: anywhere; }
.why[open] .lead { visibility: hidden; }
.numbers summary { font-weight: 400; font-size: .8125rem; }
.why[open] { padding-bottom: 1.25rem; }
.told { display: grid; grid-template-columns: minmax(0, 11fr) minmax(0, 10fr); gap: 0 1.5rem; align-items: start; }
@media (max-width: 1100px) { .told { grid-template-columns: minmax(0, 1fr); } }
.pairs { margin-top: .75rem; background: var(--sheet); border-radius: 8px; overflow: hidden; width: fit-content;
  max-width: 100%; }
.pairs img { display: block; max-width: 100%; height: auto; }
.words { margin-top: .75rem; max-width: 56rem; font-size: .9375rem; }

.lines { width: 100%; table-layout: fixed; margin-top: .75rem; }
.lines th:first-child { width: 42%; }
.lines td { overflow-wrap: anywhere; }
.lines .name { font-size: .875rem; font-weight: 400; }
.lines .verdict { display: table-cell; }
.lines .verdict span { margin-right: .375rem; }
.lines .anomalous .verdict { color: var(--warm); font-weight: 600; }
.lines .good .verdict { color: var(--cool); }
@media (max-width: 700px) { .lines th:nth-child(n+5), .lines td:nth-child(n+5) { display: none; } }
.model { margin-top: 2.5rem; }
.model .facts { grid-template-columns: repeat(auto-fill, minmax(min(17rem, 100%), 1fr)); }

@media print {
  @page { margin: 14mm 12mm; }
  :root { color-scheme: light; --warm-bar: #d9541e; --cool-bar: #5b8db5; }
  .totals { grid-template-columns: repeat(auto-fit, minmax(6rem, 1fr)); gap: .5rem; }
  .total { padding: .5rem .75rem; } .total dd { font-size: 1.5rem; }
  .overview { grid-template-columns: 3fr 2fr; }
  .images > h2, .images > .caption { break-inside: avoid; break-after: avoid; }
  .cases { display: block; }  /* or the heading would stay behind on the page before */
  .case { grid-template-columns: 42% 58%; break-inside: avoid; border-radius: 6px; margin-bottom: .75rem; }
  .case .about, .why { padding: .625rem .875rem; }
  .cards { grid-template-columns: 1fr 1fr 1fr; }
  .card { border-radius: 6px; }
  .regions, .lines { font-size: .8125rem; } th { font-size: .75rem; }
  .told { grid-template-columns: 45% 55%; gap: 0; }
  .told > :last-child { padding-left: .875rem; } .told .regions { margin-top: .375rem; }
  .words { max-width: none; font-size: .875rem; }
  thead { display: table-header-group; } tr { break-inside: avoid; }
  .numbers { display: none; }
  details.why::details-content { content-visibility: visible; display: block; }
  .why summary { list-style: none; }
  .model { break-inside: avoid; }
  .badge, .total { print-color-adjust: exact; }
}
"""

SCRIPT = """
const tools = document.querySelector('.tools'), search = tools.querySelector('input');
const buttons = [...tools.querySelectorAll('button[data-show]')], items = [...document.querySelectorAll('.item')];
const names = items.map(item => item.querySelector('.name').textContent.toLowerCase());
const sections = [...document.querySelectorAll('.images')], reasons = [...document.querySelectorAll('details.why')];
const unfold = tools.querySelector('.unfold');
let show = 'all';
function update() {
  const wanted = search.value.trim().toLowerCase();
  let shown = 0;
  items.forEach((item, index) => {
    item.hidden = !((show === 'all' || item.classList.contains(show)) && names[index].includes(wanted));
    shown += !item.hidden;
  });
  buttons.forEach(button => button.setAttribute('aria-pressed', button.dataset.show === show));
  sections.forEach(section => section.hidden = !section.querySelector('.item:not([hidden])'));
  document.querySelector('.empty').hidden = shown > 0;
  tools.querySelector('.shown').textContent =
    shown === items.length ? '' : `${shown.toLocaleString('en')} of ${items.length.toLocaleString('en')} images`;
}
function follow() {
  const asked = buttons.find(button => button.dataset.show === location.hash.slice(1) && !button.disabled);
  show = asked ? asked.dataset.show : 'all';
  update();
}
buttons.forEach(button => button.addEventListener('click', () => {
  show = button.dataset.show;
  history.replaceState(null, '', show === 'all' ? location.pathname + location.search : '#' + show);
  update();
}));
search.addEventListener('input', update);
unfold.hidden = reasons.length === 0;
unfold.addEventListener('click', () => {
  const open = unfold.getAttribute('aria-pressed') !== 'true';
  unfold.setAttribute('aria-pressed', open);
  reasons.forEach(reason => reason.open = open);
});
let folded = [];
addEventListener('beforeprint', () => {  // paper cannot be unfolded
  folded = reasons.filter(reason => !reason.open);
  folded.forEach(reason => reason.open = true);
});
addEventListener('afterprint', () => folded.forEach(reason => reason.open = false));
addEventListener('hashchange', follow);
tools.hidden = false;
follow();
"""

const tools = document.querySelector('.tools'), search = tools.querySelector('input');
const buttons = [...tools.querySelectorAll('button[data-show]')], items = [...document.querySelectorAll('.item')];
const names = items.map(item => item.querySelector('.name').textContent.toLowerCase());
const sections = [...document.querySelectorAll('.images')], reasons = [...document.querySelectorAll('details.why')];
const expand = tools.querySelector('.expand');
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
expand.hidden = reasons.length === 0;
expand.addEventListener('click', () => {
  const open = expand.getAttribute('aria-pressed') !== 'true';
  expand.setAttribute('aria-pressed', open);
  reasons.forEach(reason => reason.open = open);
});
let folded = [];
addEventListener('beforeprint', () => {  // reasons cannot be expanded on paper
  folded = reasons.filter(reason => !reason.open);
  folded.forEach(reason => reason.open = true);
});
addEventListener('afterprint', () => folded.forEach(reason => reason.open = false));
addEventListener('hashchange', follow);
tools.hidden = false;
follow();

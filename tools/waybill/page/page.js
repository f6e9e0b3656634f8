'use strict';
(() => {
  const $ = (id) => document.getElementById(id);
  let data, trainers, workers;
  // What the reader has chosen; it outlives what is drawn anew.
  const chosen = { cursor: { row: 0, column: 0 }, rank: 0, zoom: null, all: new Set(), find: '' };
  let listeners = new AbortController();  // Ends those of what was drawn before.
  let redraws = [];
  const STAGES = ['exchange', 'stage', 'post', 'wire', 'wait', 'receive', 'verify', 'commit'];
  const EXPLAINED = {
    exchange: 'trade maxima', stage: 'pack, cast, quantise, digest', post: 'post writes',
    wire: 'first write to last landing', wait: 'wait for the network', receive: 'receive',
    verify: 'verify digests', commit: 'vote until shown',
  };

  // --- numbers ---

  const seconds = (s) => s >= 1 ? `${s.toFixed(3)} s` : s >= 1e-3 ? `${(s * 1e3).toFixed(2)} ms` : `${(s * 1e6).toFixed(0)} µs`;
  const bytes = (b) => {
    for (const [unit, size] of [['TB', 1e12], ['GB', 1e9], ['MB', 1e6], ['kB', 1e3]]) {
      if (b >= size) return `${(b / size).toFixed(b >= 100 * size ? 0 : 2)} ${unit}`;
    }
    return `${b} B`;
  };
  const mean = (all) => all.reduce((sum, x) => sum + x, 0) / Math.max(1, all.length);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // --- elements ---

  function make(tag, attributes = {}, ...children) {
    const svg = ['svg', 'path', 'line', 'text', 'circle', 'g', 'title'].includes(tag);
    const element = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }
  function show(id, text) {
    $(id).hidden = false;
    if (text !== undefined) say(id, text);
  }
  // A screen reader says what is set, also if it is the same.
  function say(id, text) {
    if ($(id).textContent !== text) $(id).textContent = text;
  }
  const on = (element, event, act, options = {}) => element.addEventListener(event, act, { ...options, signal: listeners.signal });
  function table(caption, head, rows) {
    const line = (cells, tag) => make('tr', {}, ...cells.map((c, i) => make(i === 0 ? 'th' : tag, i === 0 ? { scope: 'row' } : {}, c instanceof Node ? c : String(c))));
    return make('table', { 'aria-label': caption },
      make('thead', {}, make('tr', {}, ...head.map((h) => make('th', { scope: 'col' }, h)))),
      make('tbody', {}, ...rows.map((r) => line(r, 'td'))));
  }
  function bar(name, part, number) {
    const fill = make('div', { class: 'fill' });
    fill.style.width = `${Math.min(100, 100 * part)}%`;
    return make('div', { class: 'bar' }, make('span', { class: 'name' }, name),
      make('span', { class: 'track', 'aria-hidden': 'true' }, fill), make('span', { class: 'number' }, number));
  }
  // Adds to a legend what is drawn in a colour.
  function explain(legend, tone, name, meaning) {
    const key = make('i');
    key.style.background = `var(--${tone})`;
    $(legend).append(make('li', {}, key, `${name}: ${meaning}`));
  }
  // What `build` makes of the first items, and a button for the rest.
  function firstOf(parent, items, count, what, build) {
    const box = make('div', { class: 'scroll-x' });
    const all = chosen.all.has(what) || items.length <= count;
    box.append(...build(all ? items : items.slice(0, count)));
    parent.append(box);
    if (all) return;
    const more = make('button', { type: 'button' }, `Show all ${items.length} ${what}`);
    more.addEventListener('click', () => {
      chosen.all.add(what);
      box.replaceChildren(...build(items));
      more.remove();
    });
    parent.append(more);
  }

  // --- summary ---

  function summary() {
    const kind = { simulation: 'predicted update', plan: 'plan', status: 'running job' }[data.kind] || '';
    document.title = `${data.name}: ${kind}`;
    $('title').textContent = `${data.name}: ${kind}`;
    $('subtitle').textContent = [data.model, data.trainer_sharding && `trainers ${data.trainer_sharding}`,
      data.worker_sharding && `workers ${data.worker_sharding}`, data.phase].filter(Boolean).join(' · ');
    const figures = [];
    if (data.seconds !== undefined) figures.push([data.kind === 'status' ? 'last update, slowest rank' : 'update', seconds(data.seconds)]);
    const bounds = data.bounds ? Object.entries(data.bounds).filter(([, b]) => b.seconds > 0) : [];
    const bound = Math.max(0, ...bounds.map(([, b]) => b.seconds));
    if (bound > 0) {
      figures.push(['bound of the busiest NIC', seconds(bound)]);
      figures.push(['update / bound', (data.seconds / bound).toFixed(2)]);
    }
    if (data.bytes !== undefined) figures.push(['moved', bytes(data.bytes)]);
    figures.push(['ranks', `${trainers.length} to ${workers.length}`]);
    if (data.plan) figures.push(['plan / lower bound', data.plan.ratio_to_lower_bound.toFixed(3)]);
    if (data.version !== undefined) figures.push(['committed version', data.version]);
    for (const [name, value] of figures) {
      $('figures').append(make('div', {}, make('dt', {}, name), make('dd', {}, String(value))));
    }
    if (bound > 0) {
      const longest = Math.max(data.seconds, bound);
      $('bound').append(bar('update', data.seconds / longest, seconds(data.seconds)));
      for (const [side, b] of bounds) {
        $('bound').append(bar(`${side} bound: ${b.port}`, b.seconds / longest, seconds(b.seconds)));
      }
    }
    if (data.slowest_path) show('slowest', `Slowest path: ${data.slowest_path}.`);
    if ((data.warnings || []).length > 0) {
      show('warnings');
      firstOf($('warning-list'), data.warnings, 8, 'warnings', (some) => some.map((w) => make('p', {}, w)));
    }
  }

  // --- canvases ---

  // Sizes a canvas for the screen's pixels and returns its context and width.
  function prepare(canvas, height) {
    const width = Math.max(1, canvas.clientWidth), ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return [context, width];
  }
  const redraw = () => redraws.forEach((draw) => draw());

  function heatMap() {
    const relays = data.relays || [], all = [...(data.pairs || []), ...relays];
    if (all.length === 0) return;
    show('heat');
    // The senders are in sections, each under its name: trainers, and the workers that relay.
    const relaying = [...new Set(relays.map(([from]) => from))].sort((a, b) => a - b);
    const rowOf = new Map(relaying.map((w, i) => [w, trainers.length + i]));
    const senders = [...trainers.map((r) => r.name), ...relaying.map((w) => `${workers[w].name}, which relays,`)];
    const sections = [['Trainers', 0, trainers.length]];
    if (relaying.length > 0) sections.push(['Workers that relay', trainers.length, senders.length]);
    $('heat-explained').textContent = `A row for each trainer${relaying.length > 0 ? ' and, below them, for each worker that relays to others' : ''}; a column for each worker. `
      + (data.kind === 'status' ? 'The bytes are those that the plan has for each update. ' : '')
      + 'The stronger its colour, the more a cell moves. The arrow keys move the cursor.';
    const rows = senders.length, columns = workers.length, cells = new Float64Array(rows * columns);
    for (const [t, w, b] of data.pairs || []) cells[t * columns + w] = b;
    for (const [from, to, b] of relays) cells[rowOf.get(from) * columns + to] = b;
    const most = cells.reduce((a, b) => Math.max(a, b), 0);
    const canvas = $('heat-canvas'), cursor = chosen.cursor;
    cursor.row = Math.min(cursor.row, rows - 1);
    cursor.column = Math.min(cursor.column, columns - 1);
    const title = sections.length > 1 ? 22 : 0;  // The height of a section's name.
    const size = () => {
      const cell = canvas.clientWidth / columns;
      return { cell, row: Math.min(Math.max(520, 2 * rows), Math.max(90, rows * Math.min(28, cell))) / rows };
    };
    const top = (r, row) => r * row + title * sections.filter(([, first]) => first <= r).length;
    const parse = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    function draw() {
      const { cell, row } = size();
      const [context] = prepare(canvas, rows * row + title * sections.length);
      const low = parse(colour('heat-low')), high = parse(colour('heat-high'));
      context.font = '12px system-ui, sans-serif';
      context.textBaseline = 'middle';
      for (const [name, first, end] of sections) {
        context.fillStyle = colour('ink');
        if (title > 0) context.fillText(name, 4, top(first, row) - title / 2);
        for (let r = first; r < end; ++r) {
          const y = top(r, row);
          for (let c = 0; c < columns; ++c) {
            const part = cells[r * columns + c] / most;
            if (part === 0 && cell < 1) continue;
            context.fillStyle = `rgb(${low.map((l, i) => Math.round(l + part * (high[i] - l))).join(',')})`;
            context.fillRect(c * cell, y, Math.ceil(cell) - (cell > 6 ? 1 : 0), Math.ceil(row) - (row > 6 ? 1 : 0));
          }
        }
      }
      context.strokeStyle = colour('cursor');
      context.lineWidth = 2;
      context.strokeRect(cursor.column * cell, top(cursor.row, row), Math.max(4, cell), Math.max(4, row));
    }
    function tell() {
      const moved = cells[cursor.row * columns + cursor.column];
      say('heat-text', `${senders[cursor.row]} to ${workers[cursor.column].name}: ${bytes(moved)}`);
    }
    function move(row, column) {
      cursor.row = Math.min(rows - 1, Math.max(0, row));
      cursor.column = Math.min(columns - 1, Math.max(0, column));
      draw();
      tell();
    }
    on(canvas, 'keydown', (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-16, 0], PageDown: [16, 0], Home: [-1e6, -1e6], End: [1e6, 1e6] }[event.key];
      if (!step) return;
      event.preventDefault();
      move(cursor.row + step[0], cursor.column + step[1]);
    });
    on(canvas, 'pointermove', (event) => {
      const { cell, row } = size();
      let r = rows - 1;
      while (r > 0 && event.offsetY < top(r, row)) --r;
      move(r, Math.floor(event.offsetX / cell));
    });
    redraws.push(draw);
    tell();
  }

  function timeline() {
    const ranks = [...trainers, ...workers].filter((r) => r.stages && Object.keys(r.stages).length > 0);
    if (ranks.length === 0) return;
    show('timeline');
    const used = STAGES.filter((s) => ranks.some((r) => r.stages[s]));
    for (const stage of used) explain('legend', stage, stage, EXPLAINED[stage]);
    const end = Math.max(...ranks.flatMap((r) => Object.values(r.stages).map((s) => s.end))) || 1;
    const canvas = $('timeline-canvas'), view = { begin: 0, end, ...chosen.zoom, rank: Math.min(chosen.rank, ranks.length - 1) };
    const bar = ranks.length > 64 ? 3 : 5, rowHeight = used.length * bar + 5, top = 20;
    let left = 0;  // Of the bars: the names are as wide as they need, or squeezed.
    function draw() {
      const [context, width] = prepare(canvas, top + ranks.length * rowHeight);
      context.font = '11px system-ui, sans-serif';
      left = Math.min(0.3 * width, 10 + Math.max(...ranks.map((r) => context.measureText(r.name).width)));
      const scale = (width - left) / (view.end - view.begin);
      context.textBaseline = 'middle';
      for (let i = 0; i <= 4; ++i) {
        const at = view.begin + i * (view.end - view.begin) / 4, x = left + (at - view.begin) * scale;
        context.fillStyle = colour('line');
        context.fillRect(x, top - 4, 1, canvas.height);
        context.fillStyle = colour('quiet');
        context.textAlign = i === 0 ? 'left' : i === 4 ? 'right' : 'center';
        context.fillText(seconds(at), x, 9);
      }
      context.textAlign = 'left';
      const colours = used.map(colour);
      ranks.forEach((rank, r) => {
        const y = top + r * rowHeight;
        if (r === view.rank) {
          context.fillStyle = colour('panel');
          context.fillRect(0, y - 1, width, rowHeight);
        }
        context.fillStyle = r === view.rank ? colour('ink') : colour('quiet');
        if (rowHeight >= 11 || r % 4 === 0) context.fillText(rank.name, 2, y + rowHeight / 2 - 2, left - 8);
        used.forEach((stage, s) => {
          const span = rank.stages[stage];
          if (!span) return;
          const from = Math.max(left, left + (span.begin - view.begin) * scale);
          const to = Math.min(width, left + (span.end - view.begin) * scale);
          if (to < left || from > width) return;
          context.fillStyle = colours[s];
          context.fillRect(from, y + s * bar, Math.max(1, to - from), bar - 1);
        });
      });
    }
    function tell() {
      const rank = ranks[view.rank];
      const parts = used.filter((s) => rank.stages[s]).map((s) => {
        const span = rank.stages[s];
        const busy = span.busy > 0 ? `, busy ${seconds(span.busy)}` : '';
        return `${s} ${seconds(span.begin)} to ${seconds(span.end)}${busy}`;
      });
      say('timeline-text', `${rank.name}: ${parts.join('; ')}. Shown: ${seconds(view.begin)} to ${seconds(view.end)}.`);
    }
    function look(begin, length) {
      length = Math.min(end, Math.max(end / 4096, length));
      view.begin = Math.min(end - length, Math.max(0, begin));
      view.end = view.begin + length;
      chosen.zoom = length < end ? { begin: view.begin, end: view.end } : null;
      draw();
      tell();
    }
    const zoom = (factor, at = (view.begin + view.end) / 2) => look(at - (at - view.begin) * factor, (view.end - view.begin) * factor);
    function choose(rank) {
      chosen.rank = view.rank = Math.min(ranks.length - 1, Math.max(0, rank));
      const box = $('timeline-box'), y = top + view.rank * rowHeight;
      if (y < box.scrollTop || y + rowHeight > box.scrollTop + box.clientHeight) box.scrollTop = y - box.clientHeight / 2;
      draw();
      tell();
    }
    chooseRank = (text) => {
      const found = ranks.findIndex((r) => matches(r, text));
      if (found >= 0) choose(found);
    };
    on(canvas, 'keydown', (event) => {
      const span = view.end - view.begin;
      const keys = {
        '+': () => zoom(0.5), '=': () => zoom(0.5), '-': () => zoom(2), Home: () => look(0, end),
        ArrowLeft: () => look(view.begin - span / 8, span), ArrowRight: () => look(view.begin + span / 8, span),
        ArrowUp: () => choose(view.rank - 1), ArrowDown: () => choose(view.rank + 1),
        PageUp: () => choose(view.rank - 16), PageDown: () => choose(view.rank + 16),
      };
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
    on(canvas, 'wheel', (event) => {
      if (!event.ctrlKey) return;  // The page scrolls.
      event.preventDefault();
      const at = view.begin + (event.offsetX - left) / (canvas.clientWidth - left) * (view.end - view.begin);
      zoom(event.deltaY > 0 ? 1.25 : 0.8, at);
    }, { passive: false });
    on(canvas, 'click', (event) => choose(Math.floor((event.offsetY - top) / rowHeight)));
    on($('zoom-in'), 'click', () => zoom(0.5));
    on($('zoom-out'), 'click', () => zoom(2));
    on($('zoom-all'), 'click', () => look(0, end));
    redraws.push(draw);
    tell();
  }

  // --- lists ---

  function ports() {
    if (!data.ports || data.ports.length === 0) return;
    show('ports');
    const names = { egress: 'Egress', ingress: 'Ingress', uplink: 'Uplinks', downlink: 'Downlinks', pcie: 'PCIe', nvlink: 'NVLink' };
    for (const [kind, name] of Object.entries(names)) {
      const some = data.ports.filter((p) => p.kind === kind).sort((a, b) => b.bytes - a.bytes);
      if (some.length === 0) continue;
      $('port-bars').append(make('h3', {}, `${name}: ${some.length}, mean ${bytes(mean(some.map((p) => p.bytes)))}`));
      firstOf($('port-bars'), some, 8, `of ${name}`, (ports) => ports.map((p) => bar(
        `${p.name}, busy ${Math.round(100 * Math.min(1, p.busy_seconds / data.seconds))} %`, p.bytes / some[0].bytes, bytes(p.bytes))));
    }
  }

  const matches = (rank, text) => rank.name.toLowerCase().includes(text.trim().toLowerCase());
  let chooseRank = () => {};

  function ranks() {
    if (trainers.length + workers.length === 0) return;
    show('ranks');
    const busiest = (all) => Math.max(...all.map((r) => r.bytes || 0)) / (mean(all.map((r) => r.bytes || 0)) || 1);
    $('imbalance').textContent = `Busiest over mean: ${busiest(trainers).toFixed(3)} of trainers, ${busiest(workers).toFixed(3)} of workers.`;
    rankTables();
    on($('find'), 'input', () => {
      chosen.find = $('find').value;
      rankTables();
      if (chosen.find.trim()) chooseRank(chosen.find);
    });
  }

  function rankTables() {
    $('rank-tables').replaceChildren();
    const columns = [['state', 'state', String], ['shown_version', 'shows', String], ['held_bytes', 'holds', bytes], ['bytes', 'moves', bytes],
      ['relayed_bytes', 'relays', bytes], ['ring_bytes', 'ring', bytes], ['buffer_bytes', 'other buffer', bytes], ['ledger_bytes', 'ledger', bytes]];
    for (const [name, all] of [['trainers', trainers], ['workers', workers]]) {
      const used = columns.filter(([key]) => all.some((r) => r[key]));
      const found = all.filter((r) => matches(r, chosen.find)).sort((a, b) => (b.bytes || 0) - (a.bytes || 0));
      $('rank-tables').append(make('h3', {}, `${name[0].toUpperCase()}${name.slice(1)}, busiest first`));
      if (all.length > 0 && found.length === 0) $('rank-tables').append(make('p', { class: 'quiet' }, 'None has this in its name.'));
      const row = (r) => [r.name, ...used.map(([key, , format]) => r[key] === undefined ? '' : format(r[key]))];
      firstOf($('rank-tables'), found, 8, name, (some) => [table(name, ['rank', ...used.map(([, title]) => title)], some.map(row))]);
    }
  }

  // The parts of an update as the controller sees them, and their colours.
  const PARTS = {
    wait: ['wait', 'wait to begin'], prepare: ['exchange', 'get buffers ready'], transfer: ['wire', 'send, receive, verify'],
    decide: ['verify', 'vote and record'], show: ['commit', 'switch'],
  };

  function groups() {
    const all = data.groups || [];
    if (all.length === 0) return;
    show('groups');
    const measured = all.some((g) => g.update);
    $('groups-explained').hidden = !measured;
    if (measured) {
      for (const [part, [tone, meaning]] of Object.entries(PARTS)) explain('groups-legend', tone, part, meaning);
    }
    const longest = Math.max(...all.map((g) => g.update ? g.update.seconds : 0));
    const parts = ({ update }) => {
      if (!update) return '';
      const begun = Object.keys(PARTS).filter((part) => part in update.parts);
      const said = begun.map((part) => `${part} ${seconds(update.parts[part])}`).join(', ');
      const box = make('span', { class: 'parts', role: 'img', 'aria-label': said, title: said });
      for (const part of begun) {
        const piece = make('i');
        piece.style.background = `var(--${PARTS[part][0]})`;
        piece.style.width = `${100 * update.parts[part] / longest}%`;
        box.append(piece);
      }
      return box;
    };
    const took = ({ update }) => !update ? '' : `${seconds(update.seconds)}${update.running ? `, ${update.arrived} of ${update.workers} have all` : ''}`;
    // Those that one has to look at come first.
    const sorted = [...all].sort((a, b) => (b.behind - a.behind) || a.name.localeCompare(b.name, 'en', { numeric: true }));
    const head = ['group', 'shows', 'behind', 'state', ...(measured ? ['update', 'took'] : [])];
    const row = (g) => [g.name, g.version, g.behind, g.phase, ...(measured ? [parts(g), took(g)] : [])];
    firstOf($('group-table'), sorted, 16, 'groups', (some) => [table('Groups', head, some.map(row))]);
  }

  function failures() {
    if ((data.failures || []).length === 0) return;
    show('failures');
    const ago = (s) => s < 120 ? `${Math.round(s)} s` : s < 7200 ? `${Math.round(s / 60)} min` : `${Math.round(s / 3600)} h`;
    $('failure-list').append(...data.failures.map((f) => make('p', {}, `${ago(f.seconds_ago)} ago, version ${f.version} in group ${f.group}: ${f.error}`)));
  }

  function sweep() {
    if (!data.sweep) return;
    show('sweep');
    const points = data.sweep.points, width = 640, height = 280, left = 56, bottom = 30;
    const most = Math.max(...points.map((p) => Math.max(p.seconds, p.bound_seconds)));
    const first = Math.log2(points[0].ranks), range = Math.log2(points[points.length - 1].ranks) - first || 1;
    const x = (p) => left + (Math.log2(p.ranks) - first) / range * (width - left - 20);
    const y = (s) => height - bottom - s / most * (height - bottom - 16);
    const svg = make('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `Seconds of an update by number of ${data.sweep.what}; the table below has the numbers` });
    for (const part of [0, 0.5, 1]) {
      svg.append(make('line', { x1: left, x2: width - 20, y1: y(part * most), y2: y(part * most), stroke: 'var(--line)' }),
        make('text', { x: left - 6, y: y(part * most) + 4, 'text-anchor': 'end' }, seconds(part * most)));
    }
    for (const [key, stroke, dash] of [['seconds', 'var(--accent)', ''], ['bound_seconds', 'var(--quiet)', '5 4']]) {
      svg.append(make('path', { d: points.map((p, i) => `${i ? 'L' : 'M'}${x(p)} ${y(p[key])}`).join(''), fill: 'none', stroke, 'stroke-width': 2, 'stroke-dasharray': dash }));
    }
    for (const p of points) svg.append(make('text', { x: x(p), y: height - 10, 'text-anchor': 'middle' }, String(p.ranks)));
    $('sweep-chart').append(svg, make('p', { class: 'quiet' }, 'Solid: the update. Dashed: the bound of the busiest NIC.'));
    $('sweep-table').append(table('Sweep', [data.sweep.what, 'update', 'bound'], points.map((p) => [p.ranks, seconds(p.seconds), seconds(p.bound_seconds)])));
  }

  function render(next) {
    data = next;
    trainers = data.trainers || [];
    workers = data.workers || [];
    listeners.abort();
    listeners = new AbortController();
    redraws = [];
    chooseRank = () => {};
    for (const section of document.querySelectorAll('main > section:not(#summary)')) section.hidden = true;
    for (const id of ['figures', 'bound', 'warning-list', 'groups-legend', 'group-table', 'failure-list', 'legend', 'port-bars', 'sweep-chart', 'sweep-table']) {
      $(id).replaceChildren();
    }
    for (const draw of [summary, groups, failures, timeline, heatMap, ports, ranks, sweep]) draw();
    redraw();
    $('footer').textContent = data.granularity
      ? `Simulated in ${data.granularity.pieces} pieces of at most ${bytes(data.granularity.piece_bytes)}, ${data.granularity.events} events.`
      : '';
  }

  // --- a job that goes on ---

  async function ask(name) {
    const answer = await fetch(name, { cache: 'no-store', signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
    return answer.json();
  }
  // The part that says who sends what to whom. It changes with the groups' terms only.
  const trafficOf = ({ terms, pairs, relays }) => ({ terms: JSON.stringify(terms), pairs, relays });
  let traffic;
  async function refresh() {
    const begun = performance.now();
    try {
      if (!document.hidden) {
        let next = await ask('status.json');
        if (JSON.stringify(next.terms) !== traffic.terms) {
          next = await ask('traffic.json');
          traffic = trafficOf(next);
        }
        render({ ...next, pairs: traffic.pairs, relays: traffic.relays });
        show('live', `Live: as of ${new Date().toLocaleTimeString()}`);
        $('lost').hidden = true;
      }
    } catch (error) {
      show('lost', 'The controller does not answer. This is what it said last.');
    }
    // Large jobs take longer to ask, and the controller has something else to do.
    setTimeout(refresh, Math.max(1000, 4 * (performance.now() - begun)));
  }

  window.addEventListener('resize', redraw);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  render(JSON.parse($('data').textContent));
  if (data.live) {
    traffic = trafficOf(data);
    refresh();
  }
})();

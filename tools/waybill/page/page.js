'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const $ = (id) => document.getElementById(id);
  const trainers = data.trainers || [], workers = data.workers || [];
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
    if (text !== undefined) $(id).textContent = text;
  }
  function table(caption, head, rows) {
    const line = (cells, tag) => make('tr', {}, ...cells.map((c, i) => make(i === 0 ? 'th' : tag, i === 0 ? { scope: 'row' } : {}, String(c))));
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
  // The first rows, and a button for the rest.
  function listWithMore(parent, items, count, build) {
    const box = make('div');
    box.append(...items.slice(0, count).map(build));
    parent.append(box);
    if (items.length <= count) return;
    const more = make('button', { type: 'button' }, `Show all ${items.length}`);
    more.addEventListener('click', () => {
      box.append(...items.slice(count).map(build));
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
      const p = data.published;
      const longest = Math.max(data.seconds, bound, p ? Math.max(p.predicted_seconds, p.measured_seconds) : 0);
      $('bound').append(bar('update', data.seconds / longest, seconds(data.seconds)));
      for (const [side, b] of bounds) {
        $('bound').append(bar(`${side} bound: ${b.port}`, b.seconds / longest, seconds(b.seconds)));
      }
      if (p) {
        $('bound').append(bar("published system's rules", p.predicted_seconds / longest, seconds(p.predicted_seconds)));
        $('bound').append(bar('published measurement', p.measured_seconds / longest, seconds(p.measured_seconds)));
      }
    }
    if (data.slowest_path) show('slowest', `Slowest path: ${data.slowest_path}.`);
    if ((data.warnings || []).length > 0) {
      show('warnings');
      $('warning-list').append(...data.warnings.map((w) => make('li', {}, w)));
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
  const redraws = [];
  function redrawOnChange() {
    const all = () => redraws.forEach((draw) => draw());
    window.addEventListener('resize', all);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', all);
    all();
  }

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
    const canvas = $('heat-canvas'), cursor = { row: 0, column: 0 };
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
            context.fillStyle = `rgb(${low.map((l, i) => Math.round(l + part * (high[i] - l))).join(',')})`;
            context.fillRect(c * cell, y, Math.ceil(cell) - (cell > 6 ? 1 : 0), Math.ceil(row) - (row > 6 ? 1 : 0));
          }
        }
      }
      context.strokeStyle = colour('cursor');
      context.lineWidth = 2;
      context.strokeRect(cursor.column * cell, top(cursor.row, row), Math.max(4, cell), Math.max(4, row));
    }
    function say() {
      const moved = cells[cursor.row * columns + cursor.column];
      $('heat-text').textContent = `${senders[cursor.row]} to ${workers[cursor.column].name}: ${bytes(moved)}`;
    }
    function move(row, column) {
      cursor.row = Math.min(rows - 1, Math.max(0, row));
      cursor.column = Math.min(columns - 1, Math.max(0, column));
      draw();
      say();
    }
    canvas.addEventListener('keydown', (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-16, 0], PageDown: [16, 0], Home: [-1e6, -1e6], End: [1e6, 1e6] }[event.key];
      if (!step) return;
      event.preventDefault();
      move(cursor.row + step[0], cursor.column + step[1]);
    });
    canvas.addEventListener('pointermove', (event) => {
      const { cell, row } = size();
      let r = rows - 1;
      while (r > 0 && event.offsetY < top(r, row)) --r;
      move(r, Math.floor(event.offsetX / cell));
    });
    redraws.push(draw);
    say();
  }

  function timeline() {
    const ranks = [...trainers, ...workers].filter((r) => r.stages && Object.keys(r.stages).length > 0);
    if (ranks.length === 0) return;
    show('timeline');
    const used = STAGES.filter((s) => ranks.some((r) => r.stages[s]));
    for (const stage of used) {
      const key = make('i');
      key.style.background = `var(--${stage})`;
      $('legend').append(make('li', {}, key, `${stage}: ${EXPLAINED[stage]}`));
    }
    const end = Math.max(...ranks.flatMap((r) => Object.values(r.stages).map((s) => s.end))) || 1;
    const canvas = $('timeline-canvas'), view = { begin: 0, end, rank: 0 };
    const bar = ranks.length > 64 ? 3 : 5, rowHeight = used.length * bar + 5, top = 20;
    const label = () => canvas.clientWidth < 500 ? 62 : 84;
    function draw() {
      const [context, width] = prepare(canvas, top + ranks.length * rowHeight);
      const left = label(), scale = (width - left) / (view.end - view.begin);
      context.font = '11px system-ui, sans-serif';
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
        if (rowHeight >= 11 || r % 4 === 0) context.fillText(rank.name, 2, y + rowHeight / 2 - 2);
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
    function say() {
      const rank = ranks[view.rank];
      const parts = used.filter((s) => rank.stages[s]).map((s) => {
        const span = rank.stages[s];
        const busy = span.busy > 0 ? `, busy ${seconds(span.busy)}` : '';
        return `${s} ${seconds(span.begin)} to ${seconds(span.end)}${busy}`;
      });
      $('timeline-text').textContent = `${rank.name}: ${parts.join('; ')}. Shown: ${seconds(view.begin)} to ${seconds(view.end)}.`;
    }
    function look(begin, length) {
      length = Math.min(end, Math.max(end / 4096, length));
      view.begin = Math.min(end - length, Math.max(0, begin));
      view.end = view.begin + length;
      draw();
      say();
    }
    const zoom = (factor, at = (view.begin + view.end) / 2) => look(at - (at - view.begin) * factor, (view.end - view.begin) * factor);
    function choose(rank) {
      view.rank = Math.min(ranks.length - 1, Math.max(0, rank));
      const box = $('timeline-box'), y = top + view.rank * rowHeight;
      if (y < box.scrollTop || y + rowHeight > box.scrollTop + box.clientHeight) box.scrollTop = y - box.clientHeight / 2;
      draw();
      say();
    }
    canvas.addEventListener('keydown', (event) => {
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
    canvas.addEventListener('wheel', (event) => {
      if (!event.ctrlKey) return;  // The page scrolls.
      event.preventDefault();
      const at = view.begin + (event.offsetX - label()) / (canvas.clientWidth - label()) * (view.end - view.begin);
      zoom(event.deltaY > 0 ? 1.25 : 0.8, at);
    }, { passive: false });
    canvas.addEventListener('click', (event) => choose(Math.floor((event.offsetY - top) / rowHeight)));
    $('zoom-in').addEventListener('click', () => zoom(0.5));
    $('zoom-out').addEventListener('click', () => zoom(2));
    $('zoom-all').addEventListener('click', () => look(0, end));
    redraws.push(draw);
    say();
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
      listWithMore($('port-bars'), some, 8, (p) => bar(
        `${p.name}, busy ${Math.round(100 * Math.min(1, p.busy_seconds / data.seconds))} %`, p.bytes / some[0].bytes, bytes(p.bytes)));
    }
  }

  function ranks() {
    if (trainers.length + workers.length === 0) return;
    show('ranks');
    const busiest = (all) => Math.max(...all.map((r) => r.bytes || 0)) / (mean(all.map((r) => r.bytes || 0)) || 1);
    $('imbalance').textContent = `Busiest over mean: ${busiest(trainers).toFixed(3)} of trainers, ${busiest(workers).toFixed(3)} of workers.`;
    for (const [name, all] of [['Trainers', trainers], ['Workers', workers]]) {
      const columns = [['held_bytes', 'holds'], ['bytes', 'moves'], ['relayed_bytes', 'relays'], ['ring_bytes', 'ring'], ['buffer_bytes', 'other buffer'], ['ledger_bytes', 'ledger']].filter(([key]) => all.some((r) => r[key] > 0));
      const row = (r) => [r.name, ...columns.map(([key]) => r[key] === undefined ? '' : bytes(r[key]))];
      const sorted = [...all].sort((a, b) => (b.bytes || 0) - (a.bytes || 0));
      const box = make('div', { class: 'scroll-x' });
      $('rank-tables').append(make('h3', {}, `${name}, busiest first`), box);
      const head = ['rank', ...columns.map(([, title]) => title)];
      box.append(table(name, head, sorted.slice(0, 8).map(row)));
      if (sorted.length <= 8) continue;
      const more = make('button', { type: 'button' }, `Show all ${sorted.length} ${name.toLowerCase()}`);
      more.addEventListener('click', () => box.replaceChildren(table(name, head, sorted.map(row))));
      box.append(more);
    }
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

  summary();
  timeline();
  heatMap();
  ports();
  ranks();
  sweep();
  redrawOnChange();
  $('footer').textContent = data.granularity
    ? `Simulated in ${data.granularity.pieces} pieces of at most ${bytes(data.granularity.piece_bytes)}, ${data.granularity.events} events.`
    : '';
})();

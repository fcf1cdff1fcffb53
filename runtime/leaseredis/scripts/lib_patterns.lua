-- Patterns: "patterns" holds of each consumer p, the topics that any of its members reads, and gone,
-- since when no member has had those that are about to be dropped. Publishers go by the views.
local function patterns_of(consumer)
  local w = call('HGET', T .. 'patterns', consumer)
  return w and cjson.decode(w)
end

-- split gives the parts between a pattern's stars.
local function split(pattern)
  local parts = {}
  for part in (pattern .. '*'):gmatch('([^*]*)%*') do parts[#parts + 1] = part end
  return parts
end

-- want_topics adds patterns to w and to the consumer's view v, if it has one, and stores what changed.
local function want_topics(consumer, w, v, patterns)
  local known, viewed, changed, widened = {}, {}, false, false
  for _, p in ipairs(w.p) do known[p] = true end
  for _, parts in ipairs(v and v.p or {}) do viewed[table.concat(parts, '*')] = true end
  for _, p in ipairs(patterns) do
    if not known[p] then
      w.p[#w.p + 1], known[p], changed = p, true, true
    end
    if w.gone and w.gone[p] then w.gone[p], changed = nil, true end
    if v and not viewed[p] then
      v.p[#v.p + 1], viewed[p], widened = split(p), true, true
    end
  end
  if changed then call('HSET', T .. 'patterns', consumer, cjson.encode(w)) end
  if widened then call('HSET', T .. 'views', consumer, cjson.encode(v)) end
end

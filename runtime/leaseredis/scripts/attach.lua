-- Notes what a consumer is, and creates its view.
-- consumer, record (JSON), per, source, kind of view ('' = none), patterns (JSON), where to
-- begin when it is new: '' = the beginning, 'now', or a cursor
-- Returns where it began, and how far its view is filled: '' when it is live or there is none.
local consumer, record, per, source, kind, patterns, start = arg(), arg(), arg(), arg(), arg(), arg(), arg()
local have = call('HGET', T .. 'consumers', consumer)
if have then
  local was = cjson.decode(have)
  local read = was.source and 'streams' or ''
  if was.per ~= per or read ~= source then
    return redis.error_reply('LEASEKIND per ' .. was.per .. (read ~= '' and ' of ' .. read or ''))
  end
  start = call('HGET', T .. 'starts', consumer) or ''
else
  if start == 'now' then start = last > 0 and int(last) or '' end
  call('HSET', T .. 'starts', consumer, start)
end
if have ~= record then call('HSET', T .. 'consumers', consumer, record) end
patterns = cjson.decode(patterns)

local v
if kind ~= '' then
  v = view_of(consumer)
  if not v then
    v = {k = kind, p = {}}
    if start == '' and call('ZCARD', T .. 'topics') > 0 then v.at = '0' end
  end
end
if #patterns > 0 then
  -- Patterns only join: replicas of another version may still want theirs. See narrow.lua.
  local w = patterns_of(consumer)
  if not w then
    w = {p = {}}
    for _, parts in ipairs(v and v.p or {}) do w.p[#w.p + 1] = table.concat(parts, '*') end
    if not v and have then w.p = cjson.decode(have).topics or {} end
  end
  want_topics(consumer, w, v, patterns)
end
return {start, v and v.at or ''}

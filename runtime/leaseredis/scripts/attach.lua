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
if kind == '' then return {start, ''} end

local v, changed = view_of(consumer), false
if not v then
  v, changed = {k = kind, p = {}}, true
  if start == '' and call('ZCARD', T .. 'topics') > 0 then v.at = '0' end
end
-- Patterns only join: replicas of an older version may still want theirs.
local known = {}
for _, parts in ipairs(v.p) do known[table.concat(parts, '*')] = true end
for _, parts in ipairs(cjson.decode(patterns)) do
  if not known[table.concat(parts, '*')] then
    v.p[#v.p + 1] = parts
    changed = true
  end
end
if changed then call('HSET', T .. 'views', consumer, cjson.encode(v)) end
return {start, v.at or ''}

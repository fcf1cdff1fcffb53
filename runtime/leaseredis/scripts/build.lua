-- Copies messages that topics hold into a view, in the order of ids, until it is live.
-- consumer, upto (id that the messages given reach), then of each message: topic, entry id, resource
-- Returns how far the view is filled; '' when it is live or gone.
local consumer, upto = arg(), argn()
local v = view_of(consumer)
if not v or not v.at then return '' end
local at, fresh, copied = tonumber(v.at), {}, false
for i = 1, (#ARGV - 2) / 3 do
  local topic, id, resource = arg(), arg(), arg()
  if tonumber(id:match('^%d+')) > at then
    local e = call('XRANGE', T .. 't:' .. topic, id, id)[1]
    if e then
      call('XADD', T .. 'v:' .. consumer .. ':' .. resource, id, 'topic', topic, unpack(e[2]))
      fresh[resource], copied = true, true
    end
  end
end
if upto > at then at = upto end
v.at = int(at)
if copied then
  -- Feeds have passed the messages' ids: the view's resources get a new one.
  last = math.max(last + 1, now)
  call('HSET', KEYS[1], 'last', int(last))
  for resource in pairs(fresh) do call('ZADD', T .. 'dirty:' .. consumer, int(last), resource) end
  news('m')
end
if #ARGV == 2 then
  -- Nothing was found. If that is still so, who publishes goes on from here.
  local live, min = true, '(' .. v.at
  while live do
    local page = call('ZRANGEBYSCORE', T .. 'topics', min, '+inf', 'WITHSCORES', 'LIMIT', 0, 500)
    for i = 1, #page, 2 do
      if fits_any(v.p, page[i]) then live = false end
      min = '(' .. int(tonumber(page[i + 1]))
    end
    if #page < 1000 then break end
  end
  if live then v.at = nil end
end
call('HSET', T .. 'views', consumer, cjson.encode(v))
return v.at or ''

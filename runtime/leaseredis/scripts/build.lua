-- Copies messages that topics hold into a view, in the order of ids, until it is live.
-- consumer, upto (id that the messages given reach), hold (µs for which no message is published to the
-- view's topics), then of each message: topic, entry id, resource
-- Returns how far the view is filled; '' when it is live or gone.
local consumer, upto, hold = arg(), argn(), argn()
local v = view_of(consumer)
if not v or not v.at then return '' end
local at, fresh = tonumber(v.at), {}

local function copy(topic, e, resource)
  local fields = e[2]
  if #fields > 5000 then fields = {'payload', cjson.encode(fields)} end -- Lua passes no more; it is poison
  local stream = T .. 'v:' .. consumer .. ':' .. resource
  local reply = redis.pcall('XADD', stream, e[1], 'topic', topic, unpack(fields))
  if type(reply) == 'table' and reply.err then -- another program has added one with a greater id
    add({topic = topic, view = consumer, resource = resource}, stream, tonumber(e[1]:match('^%d+')), 'topic', topic, unpack(fields))
  end
  fresh[resource] = true
end

for _ = 1, (#ARGV - 3) / 3 do
  local topic, id, resource = arg(), arg(), arg()
  if tonumber(id:match('^%d+')) > at then
    local e = call('XRANGE', T .. 't:' .. topic, id, id)[1]
    if e then copy(topic, e, resource) end
  end
end
if upto > at then at = upto end
v.at = int(at)
v.hold = hold > 0 and int(now + hold) or nil
if #ARGV == 3 then
  -- All up to here is copied. Later entries are copied in this step, and then who
  -- publishes goes on; unless it is too much.
  local rest, topics, min = {}, 0, '(' .. v.at
  while #rest < 2000 do
    local page = call('ZRANGEBYSCORE', T .. 'topics', min, '+inf', 'WITHSCORES', 'LIMIT', 0, 500)
    for i = 1, #page, 2 do
      min = '(' .. int(tonumber(page[i + 1]))
      if #rest < 2000 and fits_any(v.p, page[i]) then
        topics = topics + 1
        for _, e in ipairs(call('XRANGE', T .. 't:' .. page[i], '(' .. v.at, '(' .. int(far), 'COUNT', 2000)) do
          rest[#rest + 1] = {tonumber(e[1]:match('^%d+')), tonumber(e[1]:match('%-(%d+)$')), e, page[i]}
        end
      end
    end
    if #page < 1000 or topics > 500 then break end
  end
  if #rest < 2000 and topics <= 500 then
    table.sort(rest, function(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end)
    for _, r in ipairs(rest) do
      local e, resource = r[3], '*'
      if v.k ~= 'group' then
        resource = ''
        for i = 1, #e[2], 2 do
          if e[2][i] == 'key' then resource = e[2][i + 1] end
        end
        if v.k == 'partition' then resource = int(resource == '' and r[1] % slots or slot_of(resource)) end
      end
      copy(r[4], e, resource)
    end
    v.at, v.hold = nil, nil
  end
end
if next(fresh) then
  -- Feeds have passed the messages' ids: each of the view's resources gets a new one of its own.
  last = math.max(last, now)
  for resource in pairs(fresh) do
    last = last + 1
    call('ZADD', T .. 'dirty:' .. consumer, int(last), resource)
  end
  call('HSET', KEYS[1], 'last', int(last))
  news('m')
end
call('HSET', T .. 'views', consumer, cjson.encode(v))
return v.at or ''

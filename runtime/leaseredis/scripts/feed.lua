-- The news under this tag since the feed looked last; what is due joins the log first.
-- topics (id up to which topics were reported), looked (µs, 0 = never), number of graces, the graces
-- (µs), number of consumers with leases that become free by time, these, number of consumers that were
-- registered, these, then of each view: consumer, id up to which its resources were reported
-- Returns now, last, changes of ownership, replays, whether sessions or leases expired since
-- looked plus twice how often the server was found to be set back, when the next one expires (0 = none), when the next delayed event is due (0 =
-- none), what is wrong with one that cannot join ('' = no fault), topics with news, and of each
-- view its resources with news, each list followed by the score of its last; at most 1,000 each, and
-- those with the same score as the last.
local told, looked = argn(), argn()
local limit = 1000
local graces, expiring, registered = {}, {}, {}
for i = 1, argn() do graces[i] = argn() end
for i = 1, argn() do expiring[i] = arg() end
for i = 1, argn() do registered[i] = arg() end
for _, consumer in ipairs(registered) do
  if call('HEXISTS', T .. 'consumers', consumer) == 0 then
    return redis.error_reply('LEASESHAPE consumer ' .. consumer .. ' is not registered any more')
  end
end

-- An id that a feed has seen must not be given again, even by a replica that was promoted
-- without the last messages and has an older clock.
local back = told > last and told < far
if back then
  last = told
  set_back(last)
end

local wrong, moved = '', {}
local due = call('ZRANGEBYSCORE', T .. 'delayed', '-inf', int(now), 'LIMIT', 0, 200)
for _, member in ipairs(due) do
  if work >= most then break end
  local e = call('HGET', T .. 'delayed:e', member)
  local bad
  if e then
    local f = cmsgpack.unpack(e)
    bad = plan({topic = f[1], kind = f[2], key = f[3], slot = f[4], headers = f[5], payload = f[6], view = f[7], resource = f[8]})
  end
  if bad and bad:find('^LEASEHOLD') then break end
  if bad then -- it waits, and holds up no other
    wrong = bad
    call('ZADD', T .. 'delayed', int(now + 1000000), member)
  else
    moved[#moved + 1] = member
  end
end
if #moved > 0 then
  local ok, err = pcall(carry_out)
  if ok then
    call('ZREM', T .. 'delayed', unpack(moved))
    call('HDEL', T .. 'delayed:e', unpack(moved))
    news('m')
  else
    wrong = type(err) == 'table' and err.err or err
  end
end
local first = call('ZRANGE', T .. 'delayed', 0, 0, 'WITHSCORES')

local expired, expires = 0, 0
local function watch(key, offset)
  local from, to = looked - offset, now - offset
  if looked > 0 and call('ZCOUNT', key, '(' .. int(from), int(to)) > 0 then expired = 1 end
  local soon = call('ZRANGEBYSCORE', key, '(' .. int(to), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if soon[2] then
    local at = tonumber(soon[2]) + offset
    if expires == 0 or at < expires then expires = at end
  end
end
for _, grace in ipairs(graces) do watch(T .. 'sessions', grace) end
for _, consumer in ipairs(expiring) do watch(T .. 'free:' .. consumer, 0) end

local changes = call('HMGET', KEYS[1], 'ownership', 'replays', 'setbacks')
local reply = {now, last, tonumber(changes[1]) or 0, tonumber(changes[2]) or 0, expired + 2 * (tonumber(changes[3]) or 0), expires, tonumber(first[2]) or 0, wrong}
local function page(key, after)
  if back then after = 0 end
  local names, top = {}, after
  if last > after then
    local found = call('ZRANGEBYSCORE', key, '(' .. int(after), '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
    for i = 1, #found, 2 do
      names[#names + 1] = found[i]
      top = tonumber(found[i + 1])
    end
    if #names == limit then -- the next page begins above the last score, which others may have too
      for _, name in ipairs(call('ZRANGEBYSCORE', key, int(top), int(top))) do names[#names + 1] = name end
    end
  end
  reply[#reply + 1] = names
  reply[#reply + 1] = top
end
page(T .. 'topics', told)
while argi < #ARGV do
  local consumer = arg()
  page(T .. 'dirty:' .. consumer, argn())
end
return reply

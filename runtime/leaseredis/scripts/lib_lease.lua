-- Sessions and leases. "rules" says of each consumer what its leases obey: the grace in µs and, each
-- behind a space, whether they are of streams, and for how long those live that expire by themselves.
local function rules(consumer)
  local r = call('HGET', T .. 'rules', consumer) or '0'
  return tonumber(r:match('^%d+')), r:find(' stream', 1, true) ~= nil, tonumber(r:match(' row=(%d+)') or 0)
end

-- names_of yields the consumers that a session is a member of.
local function names_of(session)
  return (call('HGET', T .. 's:' .. session, 'consumers') or ''):gmatch('[^\n]+')
end

-- end_session ends a session for good. Its leases are another matter.
local function end_session(session)
  call('ZREM', T .. 'sessions', session)
  call('ZREM', T .. 'ring', session)
  call('ZADD', T .. 'ended', int(now), session)
  call('HSET', T .. 's:' .. session, 'ended', int(now))
  for consumer in names_of(session) do
    call('SREM', T .. 'members:' .. consumer, session)
    call('UNLINK', T .. 'granted:' .. consumer .. ':' .. session)
  end
end

-- The leases of a session that has ended are set free a part at a time, whenever a process wants leases: "freeing:" has such
-- sessions by when their leases become free. The leases go on naming their owner: that is how the next one
-- knows whether it crashed. A lease that expires by itself may be free already, so the lesser time counts.
local function free_later(consumer, session, at)
  if call('EXISTS', T .. 'held:' .. consumer .. ':' .. session) == 1 then
    call('ZADD', T .. 'freeing:' .. consumer, int(at), session)
  end
end

-- free_some sets up to so many leases free, and returns how many more it might have.
local function free_some(consumer, limit)
  local queue, free = T .. 'freeing:' .. consumer, T .. 'free:' .. consumer
  while limit > 0 do
    local first = call('ZRANGE', queue, 0, 0, 'WITHSCORES')
    if not first[1] then break end
    local held = T .. 'held:' .. consumer .. ':' .. first[1]
    local some, args = call('SPOP', held, int(math.min(limit, 1000))), {}
    for _, resource in ipairs(some) do
      args[#args + 1] = first[2]
      args[#args + 1] = resource
    end
    if #some > 0 then call('ZADD', free, 'LT', unpack(args)) end
    if call('EXISTS', held) == 0 then call('ZREM', queue, first[1]) end
    limit = limit - math.max(#some, 1)
  end
  return limit
end

-- reap declares expired sessions dead, at most so many; only then may what they held be set free.
local function reap(limit)
  local expired = call('ZRANGEBYSCORE', T .. 'sessions', '-inf', int(now), 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 1, #expired, 2 do
    local session, expires = expired[i], tonumber(expired[i + 1])
    end_session(session)
    for consumer in names_of(session) do free_later(consumer, session, expires + rules(consumer)) end
  end
  if #expired > 0 then news('s') end
  return #expired / 2
end

-- vacate leaves a lease without an owner. One that no process may take (a stream without work) is
-- vacated with idle = true.
local function vacate(key, consumer, resource, owner, idle)
  call('HSET', key, 'o', '', 'since', int(now))
  call('SREM', T .. 'held:' .. consumer .. ':' .. owner, resource)
  if idle then
    call('SREM', T .. 'want:' .. consumer, resource)
    call('ZREM', T .. 'free:' .. consumer, resource)
  else
    call('ZADD', T .. 'free:' .. consumer, int(now), resource)
  end
end

-- want makes a stream wanted and reports whether it was not. Of one that is owned it is noted, so that
-- an owner who is about to retire it does not.
local function want(consumer, resource)
  local key = lease_key(consumer, resource)
  local l = call('HMGET', key, 'o', 'since')
  if call('SADD', T .. 'want:' .. consumer, resource) == 1 then
    call('ZADD', T .. 'free:' .. consumer, l[2] or '0', resource)
    return true
  end
  if l[1] and l[1] ~= '' then call('HINCRBY', key, 'g', 1) end
  return false
end

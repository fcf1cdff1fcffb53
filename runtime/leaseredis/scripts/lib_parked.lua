-- Parked messages of a resource: "pk:" holds each, packed; "lane:" their order; "due:" lanes by
-- when their heads are due; "pr:" resources by when their first lanes are.
local function parked_keys(consumer, resource)
  local of = consumer .. ':' .. resource
  return {
    resource = resource, all = T .. 'pk:' .. of, due = T .. 'due:' .. of, resources = T .. 'pr:' .. consumer,
    lanes = T .. 'lane:' .. consumer .. ':' .. #resource .. ':' .. resource .. ':',
    touched = {},
  }
end

-- parked returns what is parked under an id: its lane, attempt, when it is due, when it first failed
-- (0: it did not yet), its error, the message, and when it was set aside, its attempt last rose or its error
-- last changed; nil when none is.
local function parked(p, id)
  local m = call('HGET', p.all, id)
  if m then return cmsgpack.unpack(m) end
end
local function set_parked(p, id, lane, attempt, due, failed, err, body, since)
  call('HSET', p.all, id, cmsgpack.pack(lane, attempt, due, failed, err, body, since))
  p.touched[lane] = true
end

-- set_aside parks a message behind those of its lane.
local function set_aside(p, id, lane, attempt, due, failed, err, body)
  set_parked(p, id, lane, attempt, due, failed, err, body, now)
  call('RPUSH', p.lanes .. lane, id)
end

-- unpark removes a message and returns what it was.
local function unpark(p, id)
  local lane, attempt, due, failed, err, body = parked(p, id)
  if lane then
    call('HDEL', p.all, id)
    call('LREM', p.lanes .. lane, 1, id)
    p.touched[lane] = true
  end
  return lane, attempt, due, failed, err, body
end

-- settle_lanes stores when the lanes that were touched are due now. Every change ends with it.
local function settle_lanes(p)
  if next(p.touched) == nil then return end
  for lane in pairs(p.touched) do
    local due
    repeat
      local head = call('LINDEX', p.lanes .. lane, 0)
      if head then
        local _, _, at = parked(p, head)
        if at then due = at else call('LPOP', p.lanes .. lane) end -- someone else deleted it
      end
    until due or not head
    if due then call('ZADD', p.due, int(due), lane) else call('ZREM', p.due, lane) end
  end
  local first = call('ZRANGE', p.due, 0, 0, 'WITHSCORES')
  if first[1] then call('ZADD', p.resources, first[2], p.resource) else call('ZREM', p.resources, p.resource) end
  p.touched = {}
end

-- drop_parked removes up to limit parked messages, whole lanes first, and returns how many steps it
-- took.
local function drop_parked(p, limit)
  local n = 0
  while n < limit do
    local lane = call('ZRANGE', p.due, 0, 0)[1]
    if not lane then break end
    local ids = call('LRANGE', p.lanes .. lane, 0, limit - n - 1)
    for _, id in ipairs(ids) do call('HDEL', p.all, id) end
    call('LTRIM', p.lanes .. lane, #ids, -1)
    p.touched[lane] = true
    settle_lanes(p)
    n = n + 1 + #ids
  end
  return n
end

-- Appending to the log. Ids are numbers: the clock in µs, or one more than the last.
local last, slots = tonumber(meta[5]) or 0, tonumber(meta[6]) or 1

-- fits tells whether s matches a pattern, given as the parts between its stars.
local function fits(parts, s)
  local n = #parts
  if n == 1 then return parts[1] == s end
  if s:sub(1, #parts[1]) ~= parts[1] then return false end
  local at = #parts[1] + 1
  for i = 2, n - 1 do
    local _, stop = s:find(parts[i], at, true)
    if not stop then return false end
    at = stop + 1
  end
  local tail = parts[n]
  return #s - at + 1 >= #tail and (tail == '' or s:sub(-#tail) == tail)
end
local function fits_any(patterns, s)
  for _, parts in ipairs(patterns) do
    if fits(parts, s) then return true end
  end
  return false
end

-- view_of reads what is known of a view: k kind, p patterns, at how far it has been filled,
-- hold until when no message is published to its topics, so that this comes to an end; a
-- view without at is live, and filled by who publishes.
local function view_of(consumer)
  local v = call('HGET', T .. 'views', consumer)
  return v and cjson.decode(v)
end

-- The writes of one call are bounded, however many views its messages go to: the server serves no other client in that time.
-- An entry counts once for each 3 kB, a view that is matched against a topic for a tenth.
local most, work = 1500, 0

local views -- those that are live, when they are needed
local by_topic = {}
local function readers(topic)
  if by_topic[topic] then return by_topic[topic] end
  if not views then
    views = {}
    local all = call('HGETALL', T .. 'views')
    for i = 1, #all, 2 do
      local v = cjson.decode(all[i + 1])
      if not v.at or v.hold and tonumber(v.hold) > now then
        v.name = all[i]
        views[#views + 1] = v
      end
    end
  end
  work = work + #views / 10
  local match = {}
  for _, v in ipairs(views) do
    if fits_any(v.p, topic) then match[#match + 1] = v end
  end
  by_topic[topic] = match
  return match
end

-- foreign names what a key holds that is to be a stream, if it is something else. One message that goes to one stream
-- need not ask: when single, XADD does, before anything is written that would have to be undone.
local usable, single = {}, false
local function foreign(stream)
  if usable[stream] then return nil end
  local is = call('TYPE', stream).ok
  if is ~= 'stream' and is ~= 'none' then
    return 'LEASEFOREIGN ' .. stream .. ' holds a ' .. is
  end
  usable[stream] = true
end

-- plan decides under which id and to which streams a message goes. It writes no key.
-- It returns an error instead when a key is not what it should be.
local planned = {}
local function plan(m)
  local id = last + 1
  if now > id then id = now end
  m.id = id
  local bad
  if m.view then
    local v = view_of(m.view)
    if not v then return end -- its consumer was forgotten
    if v.at then return 'LEASEHOLD ' .. m.view .. ' is registered for the first time' end
    local stream = T .. 'v:' .. m.view .. ':' .. m.resource
    bad = foreign(stream)
    if bad then return bad end
    m.copies = {{stream, m.view, m.resource}}
    work = work + 1 + #m.payload / 3000
    last = id
    planned[#planned + 1] = m
    return
  end
  m.stream = T .. 't:' .. m.topic
  local matching = readers(m.topic)
  single = single and #matching == 0
  bad = not single and foreign(m.stream)
  if bad then return bad end
  for _, v in ipairs(matching) do
    if v.at then return 'LEASEHOLD ' .. v.name .. ' is registered for the first time' end
    local resource = '*'
    if v.k == 'stream' then
      resource = m.key
    elseif v.k == 'partition' then
      resource = m.slot
      if resource == '' then resource = int(id % slots) end
    end
    local stream = T .. 'v:' .. v.name .. ':' .. resource
    bad = foreign(stream)
    if bad then return bad end
    m.copies = m.copies or {}
    m.copies[#m.copies + 1] = {stream, v.name, resource}
  end
  work = work + (1 + #(m.copies or {})) * (1 + #m.payload / 3000)
  last = id
  planned[#planned + 1] = m
end

-- far: no clock gave an id that is a day ahead. Another program wrote the entry, and everything that comes
-- after it in its stream would have to be above it.
local far = now + 86400000000

-- slot_of is FNV-1a of 64 bits, modulo the slots, as shape.go has it.
local function slot_of(key)
  local hi, lo = 0xcbf29ce4, 0x84222325
  for i = 1, #key do
    lo = bit.bxor(lo, key:byte(i)) % 4294967296
    local low = lo * 435 -- the prime is 2^40 + 435
    hi = (hi * 435 + math.floor(low / 4294967296) + lo * 256) % 4294967296
    lo = low % 4294967296
  end
  return (hi % slots * (4294967296 % slots) + lo) % slots
end

-- delay stores an event that joins the log when it is due. One that has a view goes there alone, as
-- a message of a resource.
local function delay(number, due, m)
  call('ZADD', T .. 'delayed', int(due), number)
  call('HSET', T .. 'delayed:e', number, cmsgpack.pack({m.topic, m.kind, m.key, m.slot, m.headers, m.payload, m.view, m.resource}))
end

-- adopt takes entries with such ids out of a stream, up to so many bytes, and puts them among the delayed
-- events: they join the log, with ids of this clock. Returns how many, and whether these were all.
local function adopt(stream, bytes, topic, view, resource)
  local n, size = 0, 0
  while size < bytes do
    local e = call('XRANGE', stream, int(far), '+', 'COUNT', 1)[1]
    if not e then break end
    local m, fields = {topic = topic, kind = '', key = '', headers = '', view = view, resource = resource}, {}
    for i = 1, #e[2], 2 do
      local name, value = e[2][i], e[2][i + 1]
      size = size + #name + #value
      if name == 'payload' or name == 'kind' or name == 'key' or name == 'headers' or view and name == 'topic' then
        m[name] = value
      end
      fields[name] = value
    end
    m.payload = m.payload or cjson.encode(fields)
    m.slot = m.key ~= '' and int(slot_of(m.key)) or ''
    call('XDEL', stream, e[1])
    last = math.max(last + 1, now)
    delay(int(last), now, m)
    n, size = n + 1, size + 100
  end
  if n > 0 then call('HSET', KEYS[1], 'last', int(last)) end
  local top = call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  if top and size >= bytes and call('XRANGE', stream, int(far), '+', 'COUNT', 1)[1] then return n, false end
  call('XSETID', stream, top and top[1] or '0-1')
  return n, true
end

-- add appends an entry. If somebody else has added one with a greater id, the next one is
-- taken, so that the stream goes on.
local function add(m, stream, id, ...)
  local fields = {...}
  local function try(at) return redis.pcall('XADD', stream, int(at), unpack(fields)) end
  local reply = try(id)
  if single and type(reply) == 'table' and reply.err then
    local bad = foreign(stream)
    if bad then error(bad, 0) end
  end
  if type(reply) == 'table' and reply.err and (reply.err:find('equal or smaller', 1, true) or reply.err:find('exhausted', 1, true)) then
    adopt(stream, 16777216, m.topic, m.view, m.resource)
    reply = try(id)
    if type(reply) == 'table' and reply.err then
      local top = call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
      local above = tonumber((top and top[1] or '0-0'):match('^%d+')) + 1
      if above <= id or above > 9000000000000000 then error(reply.err, 0) end
      reply, id = try(above), above
    end
  end
  if type(reply) == 'table' and reply.err then error(reply.err, 0) end
  return id
end

-- carry_out writes what was planned and wakes the feeds.
local function carry_out()
  if #planned == 0 then return end
  local topics, dirty = {}, {}
  for _, m in ipairs(planned) do
    local id = m.id
    local headers = m.headers ~= '' and m.headers
    if m.stream then
      if headers then
        id = add(m, m.stream, id, 'kind', m.kind, 'key', m.key, 'payload', m.payload, 'headers', headers)
      else
        id = add(m, m.stream, id, 'kind', m.kind, 'key', m.key, 'payload', m.payload)
      end
      topics[m.topic] = id
    end
    if id > last then last = id end
    for _, c in ipairs(m.copies or {}) do
      local of = {topic = m.topic, view = c[2], resource = c[3]}
      if headers then
        add(of, c[1], id, 'topic', m.topic, 'kind', m.kind, 'key', m.key, 'payload', m.payload, 'headers', headers)
      else
        add(of, c[1], id, 'topic', m.topic, 'kind', m.kind, 'key', m.key, 'payload', m.payload)
      end
      dirty[c[2]] = dirty[c[2]] or {}
      dirty[c[2]][c[3]] = id
    end
  end
  for topic, id in pairs(topics) do call('ZADD', T .. 'topics', int(id), topic) end
  for consumer, resources in pairs(dirty) do
    for resource, id in pairs(resources) do call('ZADD', T .. 'dirty:' .. consumer, int(id), resource) end
  end
  call('HSET', KEYS[1], 'last', int(last))
end

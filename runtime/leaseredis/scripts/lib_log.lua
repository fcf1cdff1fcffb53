-- Appending to the log. Ids are numbers: the clock in µs, or one more than the last.
local meta = call('HMGET', KEYS[1], 'last', 'slots')
local last, slots = tonumber(meta[1]) or 0, tonumber(meta[2]) or 1

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
-- hold until when nothing is published to its topics, so that this comes to an end; a
-- view without at is live, and filled by who publishes.
local function view_of(consumer)
  local v = call('HGET', T .. 'views', consumer)
  return v and cjson.decode(v)
end

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
  local match = {}
  for _, v in ipairs(views) do
    if fits_any(v.p, topic) then match[#match + 1] = v end
  end
  by_topic[topic] = match
  return match
end

-- foreign names what a key holds that is to be a stream, if it is something else.
local usable = {}
local function foreign(stream)
  if usable[stream] then return nil end
  local is = call('TYPE', stream).ok
  if is ~= 'stream' and is ~= 'none' then
    return 'LEASEFOREIGN ' .. stream .. ' holds a ' .. is
  end
  usable[stream] = true
end

-- plan decides under which id and to which streams a message goes. Nothing is written yet.
-- It returns an error instead when a key is not what it should be.
local planned = {}
local function plan(m)
  local id = last + 1
  if now > id then id = now end
  m.id = id
  m.stream = T .. 't:' .. m.topic
  local bad = foreign(m.stream)
  if bad then return bad end
  for _, v in ipairs(readers(m.topic)) do
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
  last = id
  planned[#planned + 1] = m
end

-- add appends an entry. If somebody else has added one with a greater id, the next one is
-- taken, so that the stream goes on.
local function add(stream, id, ...)
  local reply = redis.pcall('XADD', stream, int(id), ...)
  if type(reply) == 'table' and reply.err and reply.err:find('equal or smaller', 1, true) then
    local top = call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
    local above = tonumber((top and top[1] or '0-0'):match('^%d+')) + 1
    if above <= id or above > 9000000000000000 then error(reply.err, 0) end
    call('XADD', stream, int(above), ...)
    return above
  end
  if type(reply) == 'table' and reply.err then error(reply.err, 0) end
  return id
end

-- carry_out writes what was planned and wakes the feeds.
local function carry_out()
  if #planned == 0 then return end
  local topics, dirty = {}, {}
  for _, m in ipairs(planned) do
    local id
    if m.headers ~= '' then
      id = add(m.stream, m.id, 'kind', m.kind, 'key', m.key, 'payload', m.payload, 'headers', m.headers)
    else
      id = add(m.stream, m.id, 'kind', m.kind, 'key', m.key, 'payload', m.payload)
    end
    if id > last then last = id end
    topics[m.topic] = id
    if m.copies then
      for _, c in ipairs(m.copies) do
        if m.headers ~= '' then
          add(c[1], id, 'topic', m.topic, 'kind', m.kind, 'key', m.key, 'payload', m.payload, 'headers', m.headers)
        else
          add(c[1], id, 'topic', m.topic, 'kind', m.kind, 'key', m.key, 'payload', m.payload)
        end
        dirty[c[2]] = dirty[c[2]] or {}
        dirty[c[2]][c[3]] = id
      end
    end
  end
  for topic, id in pairs(topics) do call('ZADD', T .. 'topics', int(id), topic) end
  for consumer, resources in pairs(dirty) do
    for resource, id in pairs(resources) do call('ZADD', T .. 'dirty:' .. consumer, int(id), resource) end
  end
  call('HSET', KEYS[1], 'last', int(last))
end

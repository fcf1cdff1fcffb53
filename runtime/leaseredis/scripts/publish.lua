-- Appends events to the log, all or none, once for each attempt.
-- attempt, seen (greatest id that the publisher knows of), then of each event: topic, kind,
-- key, slot ('' when it has no key), headers, payload, event id, due (µs or 0), delay (µs)
-- Returns the last id that was given.
local attempt, seen = T .. 'pub:' .. arg(), argn()
local done = call('GET', attempt)
if done then return tonumber(done) end

-- Ids rise also above what the publisher has seen of other tags, whose clocks may differ. What is
-- a day ahead is not followed: no clock gave it.
if seen > last and seen < now + 86400000000 then last = seen end
local ids, waiting = {}, {}
for _ = 1, (#ARGV - 2) / 9 do
  local m = {topic = arg(), kind = arg(), key = arg(), slot = arg(), headers = arg(), payload = arg()}
  local id, due, delay = arg(), argn(), argn()
  local claimed = false
  if id ~= '' then
    id = T .. 'id:' .. #m.topic .. ':' .. m.topic .. ':' .. id
    claimed = ids[id] or call('EXISTS', id) == 1
    ids[id] = true
  end
  if not claimed then
    if now + delay > due then due = now + delay end
    if due > now then
      last = math.max(last + 1, now)
      waiting[#waiting + 1] = {int(last), due, m}
    else
      local bad = plan(m)
      if bad then return redis.error_reply(bad) end
    end
  end
end

call('SET', attempt, int(last), 'PX', 60000) -- longer than it is tried again
local ok, err = pcall(carry_out)
if not ok then
  call('DEL', attempt)
  return redis.error_reply(type(err) == 'table' and err.err or tostring(err))
end
for id in pairs(ids) do call('SET', id, '1', 'PX', 604800000, 'NX') end
for _, w in ipairs(waiting) do
  delay(w[1], w[2], w[3])
end
if #planned == 0 and #waiting > 0 then call('HSET', KEYS[1], 'last', int(last)) end
if #planned > 0 or #waiting > 0 then news('m') end
return last

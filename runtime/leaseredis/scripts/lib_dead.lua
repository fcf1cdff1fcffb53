-- Dead letters: "dead:" numbers them, "dl:" holds each, packed; "dx:" knows those of a resource by
-- message.
local function dead_keys(consumer, resource)
  return {
    resource = resource, numbers = T .. 'dead:' .. consumer, all = T .. 'dl:' .. consumer,
    messages = T .. 'dx:' .. consumer .. ':' .. resource,
  }
end

-- dead_letter returns what is known under a number: resource, message id, attempts, reason, when it
-- first failed, when it died, and the message; nil when there is none.
local function dead_letter(consumer, number)
  local d = call('HGET', T .. 'dl:' .. consumer, number)
  if d then return cmsgpack.unpack(d) end
end

-- give_up makes a dead letter, once for each message of a resource.
local function give_up(d, id, attempt, reason, failed, body)
  if call('HEXISTS', d.messages, id) == 1 then return end
  local last = tonumber(call('HGET', KEYS[1], 'dead') or 0)
  local number = int(math.max(now, last + 1))
  call('HSET', d.all, number, cmsgpack.pack(d.resource, id, attempt, reason, failed, now, body))
  call('HSET', d.messages, id, number)
  call('ZADD', d.numbers, number, number)
  call('HSET', KEYS[1], 'dead', number)
end

-- drop_dead removes a dead letter and returns what it was.
local function drop_dead(consumer, number)
  local resource, id, attempts, reason, failed, died, body = dead_letter(consumer, number)
  if resource then
    call('HDEL', T .. 'dl:' .. consumer, number)
    call('HDEL', T .. 'dx:' .. consumer .. ':' .. resource, id)
  end
  call('ZREM', T .. 'dead:' .. consumer, number)
  return resource, id, attempts, reason, failed, died, body
end

-- dead_numbers lists numbers of dead letters between two, the oldest first, or the newest.
local function dead_numbers(consumer, back, after, through, limit)
  local key, lo, hi = T .. 'dead:' .. consumer, '(' .. int(after), int(through)
  if back then return call('ZREVRANGEBYSCORE', key, hi, lo, 'LIMIT', 0, limit) end
  return call('ZRANGEBYSCORE', key, lo, hi, 'LIMIT', 0, limit)
end

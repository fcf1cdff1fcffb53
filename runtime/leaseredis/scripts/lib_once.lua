-- Items: "once:" holds how the execution of each has ended, packed; "onceat:" when it was begun, or
-- done. Begun: 'begun', session, resource and epoch of the lease, its last seq then, what its
-- beginner got, and the messages that were asked about. The session is empty when its end
-- stays unknown.
local function once_keys(consumer) return {all = T .. 'once:' .. consumer, at = T .. 'onceat:' .. consumer} end

local function item_of(k, item)
  local known = call('HGET', k.all, item)
  if known then return cmsgpack.unpack(known) end
end

local function begin_item(k, item, session, resource, epoch, seq, told, asked)
  call('HSET', k.all, item, cmsgpack.pack('begun', session, resource, epoch, seq, told, asked))
end

local function forget_item(k, item)
  call('HDEL', k.all, item)
  call('ZREM', k.at, item)
end

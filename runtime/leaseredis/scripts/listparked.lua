-- Lists parked messages of a resource: consumer, resource, how many of the first lane to skip, limits in messages and
-- bytes, and the lanes. Returns how many lanes were read to their end, how many messages of the next one were,
-- and for each message its id, 1 if it waits behind another, its attempt, when it is due and when it first failed in
-- µs, its error, the message without its payload, the length of that, and the lane.
local consumer, resource, from, limit, room = arg(), arg(), argn(), argn(), argn()
local p, out, page = parked_keys(consumer, resource), {}, 10

for i = 6, #ARGV do
  local ids
  repeat
    ids = call('LRANGE', p.lanes .. ARGV[i], from, from + page - 1)
    for _, id in ipairs(ids) do
      if #out >= limit or room <= 0 then return {i - 6, from, out} end
      local packed = call('HGET', p.all, id)
      if packed then -- else someone else deleted it
        local _, attempt, due, failed, err, body = cmsgpack.unpack(packed)
        local head = head_of(body)
        room = room - #packed
        out[#out + 1] = {id, from > 0 and 1 or 0, attempt, int(due), int(failed), err, body:sub(1, head), #body - head, ARGV[i]}
      end
      from = from + 1
    end
  until #ids < page
  from = 0
end
return {#ARGV - 5, 0, out}

-- Finds parked messages of a resource: consumer, resource, limit in bytes that are loaded, ids. Returns how many were looked at, and
-- of those there are what listparked returns of each.
local consumer, resource, room = arg(), arg(), argn()
local p, looked, out = parked_keys(consumer, resource), 0, {}
for i = 4, #ARGV do
  if room <= 0 then break end
  looked = looked + 1
  local lane, attempt, due, failed, err, body = parked(p, ARGV[i])
  if lane then
    local head = head_of(body)
    room = room - #body
    local behind = call('LINDEX', p.lanes .. lane, 0) ~= ARGV[i] and 1 or 0
    out[#out + 1] = {ARGV[i], behind, attempt, int(due), int(failed), err, body:sub(1, head), #body - head, lane}
  end
end
return {looked, 0, out}

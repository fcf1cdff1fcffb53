-- Notes how executions have ended: session, consumer, number; for each resource, epoch and seq of
-- the progress that tells, 1 if the lease is under this tag and to be looked at, item, and 'done',
-- 'failed', or 'asked' and the message. Only who has begun an execution can tell.
local session, consumer, n = arg(), arg(), argn()
local k = once_keys(consumer)
urgent()
for i = 1, n do
  local resource, epoch, seq, look, item, how, message = arg(), arg(), argn(), arg(), arg(), arg(), arg()
  local current = true
  if look == '1' then
    local key = held(session, consumer, resource, epoch)
    current = key and seq >= tonumber(call('HGET', key, 'q') or 0)
  end
  local state, s, r, e, since, told, asked = item_of(k, item)
  -- A progress from before the execution was begun is about an earlier one.
  if current and state == 'begun' and s == session and r == resource and e == epoch and (seq == 0 or seq > since) then
    if how == 'done' then
      call('HSET', k.all, item, cmsgpack.pack('done'))
      call('ZADD', k.at, int(now), item)
    elseif how == 'failed' then
      forget_item(k, item)
    else
      asked[#asked + 1] = message
      begin_item(k, item, '', r, e, since, told, asked)
    end
  end
end
return n

-- Notes that an item is about to be executed: consumer, item, session, resource, epoch, message; 1
-- if the lease is under this tag and to be looked at, else 0 and its last seq; session, resource
-- and epoch of a beginning that is known to have ended, or empty. Returns 'new', 'unknown', 'done',
-- 'fenced', or {session, resource, epoch} of who has begun it.
local consumer, item, session, resource, epoch, message = arg(), arg(), arg(), arg(), arg(), arg()
local look, seq = arg(), argn()
local ended = {arg(), arg(), arg()}
if look == '1' then
  local key = held(session, consumer, resource, epoch)
  if not key then return 'fenced' end
  seq = tonumber(call('HGET', key, 'q') or 0)
end
local k, told = once_keys(consumer), 'new'
local state, s, r, e, _, before, asked = item_of(k, item)
if state == 'done' then return 'done' end
if state then
  if s == session and r == resource and e == epoch then return before end -- the reply was lost
  if s ~= '' and not (s == ended[1] and r == ended[2] and e == ended[3]) then return {s, r, e} end
  told = 'unknown'
  for i = #asked, 1, -1 do
    if asked[i] == message then
      table.remove(asked, i)
      told = 'new'
    end
  end
end
urgent()
begin_item(k, item, session, resource, epoch, seq, told, asked or {})
call('ZADD', k.at, int(now), item)
return told

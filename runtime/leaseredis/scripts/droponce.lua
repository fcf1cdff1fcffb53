-- Forgets items whose leases have ended: consumer, number; for each item, session, resource, epoch.
-- Returns how many.
local consumer, n = arg(), argn()
local k, dropped = once_keys(consumer), 0
for i = 1, n do
  local item, session, resource, epoch = arg(), arg(), arg(), arg()
  local _, s, r, e = item_of(k, item)
  if s == session and r == resource and e == epoch then
    forget_item(k, item)
    dropped = dropped + 1
  end
end
return dropped

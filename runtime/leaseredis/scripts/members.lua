-- Describes the live sessions of a consumer: for each its id, host, pid, and µs since it was
-- opened, since its last heartbeat, and until it expires, and the connection that it has noted or ''.
local consumer, out = arg(), {}
for _, id in ipairs(call('SMEMBERS', T .. 'members:' .. consumer)) do
  if alive(id) then
    local s = call('HMGET', T .. 's:' .. id, 'host', 'pid', 'opened', 'beat', 'conn')
    local expires = tonumber(call('ZSCORE', T .. 'sessions', id))
    out[#out + 1] = {id, s[1] or '', s[2] or '0', int(now - (tonumber(s[3]) or now)), int(now - (tonumber(s[4]) or now)), int(expires - now), s[5] or ''}
  end
end
return out

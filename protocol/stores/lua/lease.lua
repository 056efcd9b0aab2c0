-- lease: the right to lead one space, for a while, with a term.
-- Guarantee: at most one holder at a time by the server's clock; every new holder gets a higher term.
-- KEYS: 1 meta
-- ARGV: 1 verb take|renew|release 2 holder 3 time to live in ms
-- Returns: the term while the caller holds it, else 0; -1 where there is no such space
if redis.replicate_commands then redis.replicate_commands() end
local m = redis.call('HMGET', KEYS[1], 'kind', 'lease_holder', 'lease_term', 'lease_until')
if not m[1] then return -1 end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local term, live = tonumber(m[3] or '0'), m[2] and tonumber(m[4] or '0') > now
if ARGV[1] == 'release' then
  if m[2] == ARGV[2] then redis.call('HSET', KEYS[1], 'lease_until', '0') end
  return 0
end
if m[2] == ARGV[2] and (live or ARGV[1] == 'renew') then
  redis.call('HSET', KEYS[1], 'lease_until', string.format('%d', now + tonumber(ARGV[3])))
  return term
end
if live and ARGV[1] == 'take' and tonumber(m[4]) > now + 10 * tonumber(ARGV[3]) then
  -- No lease is that long: the clock was set back. A holder that lives renews; a dead one must not lead for an hour.
  redis.call('HSET', KEYS[1], 'lease_until', string.format('%d', now + tonumber(ARGV[3])))
end
if ARGV[1] == 'renew' or live then return 0 end
redis.call('HSET', KEYS[1], 'lease_holder', ARGV[2], 'lease_term', string.format('%d', term + 1),
           'lease_until', string.format('%d', now + tonumber(ARGV[3])))
return term + 1

-- ack: entries of a role's stream are settled.
-- Guarantee: XACK, XDEL and HDEL in one step, so that the stream's length is its backlog. Safe to repeat.
-- KEYS: 1 role stream 2 queued
-- ARGV: 2 an entry: entry id, space:task:attempt
-- Returns: how many entries were there
local n = 0
for at = 1, #ARGV, 2 do
  redis.pcall('XACK', KEYS[1], 'workers', ARGV[at])
  n = n + redis.call('XDEL', KEYS[1], ARGV[at])
  if redis.call('HGET', KEYS[2], ARGV[at + 1]) == ARGV[at] then redis.call('HDEL', KEYS[2], ARGV[at + 1]) end
end
return n

-- ack: entries of a role's stream are settled.
-- Guarantee: XACK, XDEL and HDEL in one step, so that the stream's length is its backlog. Safe to repeat.
-- KEYS: 1 role stream 2 queued
-- ARGV: 2 an entry: entry id, space:task:attempt; at most 200 entries
-- Returns: how many entries were there
local entries, fields = {}, {}
for at = 1, #ARGV, 2 do
  entries[#entries + 1] = ARGV[at]
  fields[#fields + 1] = ARGV[at + 1]
end
redis.pcall('XACK', KEYS[1], 'workers', unpack(entries))
local n = redis.call('XDEL', KEYS[1], unpack(entries))
local gone = {}
for i, entry in ipairs(redis.call('HMGET', KEYS[2], unpack(fields))) do
  if entry == entries[i] then gone[#gone + 1] = fields[i] end
end
if #gone > 0 then redis.call('HDEL', KEYS[2], unpack(gone)) end
return n

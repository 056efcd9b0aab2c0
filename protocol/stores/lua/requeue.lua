-- requeue: an entry that a dead consumer read but never claimed goes back to the end of its role's stream.
-- Guarantee: acknowledging the old and adding the new entry are one step: a task is never in neither.
-- KEYS: 1 role stream 2 queued
-- ARGV: 1 old entry 2 space 3 task 4 attempt
-- Returns: the new entry id
local field = ARGV[2] .. ':' .. ARGV[3] .. ':' .. ARGV[4]
redis.pcall('XACK', KEYS[1], 'workers', ARGV[1])
redis.call('XDEL', KEYS[1], ARGV[1])
local known = redis.call('HGET', KEYS[2], field)
if known and known ~= ARGV[1] and #redis.call('XRANGE', KEYS[1], known, known) > 0 then return known end
local entry = redis.call('XADD', KEYS[1], '*', 's', ARGV[2], 't', ARGV[3], 'a', ARGV[4])
redis.call('HSET', KEYS[2], field, entry)
return entry

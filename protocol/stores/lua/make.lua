-- make: the metadata of a new space.
-- Guarantee: all of it or none; whoever comes second changes nothing.
-- KEYS: 1 meta
-- ARGV: field and value of each
-- Returns: 1 made, 0 it was there
if redis.call('HEXISTS', KEYS[1], 'kind') == 1 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV))
return 1

-- live: pieces of what an agent's model is writing, for people who watch. Never the truth.
-- Guarantee: only the attempt's owner is heard; the stream is capped and expires by itself.
-- KEYS: 1 tasks 2 live (stream)
-- ARGV: task attempt owner agent most_entries life_ms, then kind and text of each piece
-- Returns: 1, or 0 where the attempt is no longer the owner's
--#include common
if fence(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) then return 0 end
for i = 7, #ARGV, 2 do
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[5], '*', 's', ARGV[1], 'n', ARGV[2], 'a', ARGV[4], 'k', ARGV[i], 't', ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[2], ARGV[6])
return 1

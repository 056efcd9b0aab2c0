-- reindex: the indexes of a space made anew from its log, beside the live ones.
-- Guarantee: the same functions that index an append run over the log's entries; nothing live is touched. An entry that
--   is no record is passed over. What is made expires an hour after the last call.
-- KEYS: 1 log 2 the new names (streams share its base, `…:rb`)
-- ARGV: 1 after which entry ('0-0' = from the start; then what was made before is removed by the caller) 2 how many
-- Returns: {last entry looked at, how many}
--#include law
local HOUR = 3600000
local keys = {base = string.sub(KEYS[2], 1, -7), names = KEYS[2]}
local last = ARGV[1]
local entries = redis.call('XRANGE', KEYS[1], '(' .. last, '+', 'COUNT', ARGV[2])
for _, e in ipairs(entries) do
  local event, who, session = indexed_parts(e[2])
  if event then
    index(keys, e[1], event, who, session)
    for _, stream in ipairs({'e:' .. event, 'w:' .. who, 's:' .. session}) do
      redis.call('PEXPIRE', keys.base .. ':ix:' .. stream, HOUR)
    end
  end
  last = e[1]
end
flush(keys)
redis.call('PEXPIRE', KEYS[2], HOUR)
return {last, #entries}

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
  local f = {}
  for i = 1, #e[2], 2 do f[e[2][i]] = e[2][i + 1] end
  local ok, session = pcall(session_of, f.trace or '')
  if f.event and f.who and ok and type(session) == 'string' then
    index(keys, e[1], f.event, f.who, session)
    for _, stream in ipairs({'e:' .. f.event, 'w:' .. f.who, 's:' .. session}) do
      redis.call('PEXPIRE', keys.base .. ':ix:' .. stream, HOUR)
    end
  end
  last = e[1]
end
flush(keys)
redis.call('PEXPIRE', KEYS[2], HOUR)
return {last, #entries}

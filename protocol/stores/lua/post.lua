-- post: put a message into an agent's mailbox.
-- Guarantee: a message id lies there once; a full mailbox refuses and keeps what it has. Needs no fence: anyone who may
--   write to the space may send, and only the agent's owner takes out.
-- KEYS: 1 mail
-- ARGV: 1 most messages 2 id 3 message (JSON)
-- Returns: {'ok', entry} | {'already', entry} | {'full', number of messages}
if redis.replicate_commands then redis.replicate_commands() end
local waiting = redis.call('XRANGE', KEYS[1], '-', '+')
for _, entry in ipairs(waiting) do
  if entry[2][2] == ARGV[2] then return {'already', entry[1]} end
end
if #waiting >= tonumber(ARGV[1]) then return {'full', #waiting} end
return {'ok', redis.call('XADD', KEYS[1], '*', 'i', ARGV[2], 'd', ARGV[3])}

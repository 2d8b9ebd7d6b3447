-- Decides many requests on the server that holds their counters.
--
-- This is `algorithm::decide` once more, for one request after the other, and the two agree to the last microsecond
-- (tests/algorithms). Read the Rust for the reasons; here stands only what Lua makes different:
--
-- * Numbers are doubles. All values stay integers below 2^53, and products go through muldiv, whose proof is in
--   src/algorithm/arith.rs. Remainders are math.fmod's, which is exact for all doubles; the operator % is not.
-- * A script that fails has written what it wrote. So it reads all keys, then decides, then writes: whatever can fail
--   for reasons of the data or of the cluster fails before the first write, and only for the requests that it concerns.
-- * It runs alone on its server, so it does what must be done there and no more: what fits, and what is left behind. The
--   reply says what was read and at what time; who asked works out the rest of the verdicts from that.
-- * Each call builds all functions and tables anew, and that costs more than the arithmetic. So a function is only made
--   for an algorithm that a request uses, and a counter is one table.
--
-- What KEYS, ARGV and the reply mean is written in src/store/script.rs.
-- Works on Redis 6.2 and later. Without a shebang, so that a call may touch keys of several slots of its node.

local EXACT = 9007199254740992 -- 2^53
local WAIT_MAX = 4503599627370496 -- 2^52
local COUNT_MAX = 562949953421311 -- 2^49 - 1
local PLAIN_MAX = 80 -- bytes of a plain count
local MORE_US = 2000000 -- 2 s

-- Letters: algorithms b g s f r, acts T D C L G, roles E S Q.
local BUCKET, GCRA, SLIDING, FIXED, PLAIN = 98, 103, 115, 102, 114
local TAKE, DRAIN, COUNT, LOOK, GIVE = 84, 68, 67, 76, 71
local ENFORCE, QUOTA = 69, 81

local floor, fmod, ceil = math.floor, math.fmod, math.ceil
local byte, match, format = string.byte, string.match, string.format
local pack, unpacked = struct.pack, struct.unpack
local call, pcall = redis.call, redis.pcall

local ask = cmsgpack.unpack(ARGV[2])
local now = ARGV[1]
if now == '' then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = tonumber(now)
end
if now >= EXACT then now = EXACT - 1 end

-- Key k is keys[first + k].
local keys, first, last = KEYS, 0, #KEYS
if ARGV[3] then keys, first, last = ARGV, 2, #ARGV - 2 end

-- === 1. Read all ===

-- Whether it is a whole number from 0 to max; NaN is none.
local function whole(x, max) return x >= 0 and x <= max and x % 1 == 0 end

-- The counter of a state that we wrote, or nil. A plain count may be another's, and more than we would count.
-- Of a counter s, s[1] to s[4] are its numbers, s[1] being false in a fresh one; s[5] is how long it is to be kept when
-- it has to be written, 0 to delete it; s[6] is the letter of its algorithm; s[7] is until when the server surely keeps
-- what was read. That is not known of a plain count, and not believed of what is ahead of our time.
local function parse(text)
  local letter, size = byte(text), #text
  if letter == FIXED and size == 25 then
    local _, start, count, kept = unpacked('<Bddd', text)
    if whole(start, EXACT - 1) and whole(count, COUNT_MAX) and whole(kept, EXACT - 1) then
      return {start, count, false, false, false, letter, start <= now and kept or 0}
    end
  elseif (letter == BUCKET or letter == GCRA) and size == 41 then
    local _, a, part, of, at, kept = unpacked('<Bddddd', text)
    local fair = whole(a, WAIT_MAX) or (letter == BUCKET and whole(-a, COUNT_MAX))
    if fair and whole(of, COUNT_MAX) and whole(part, of - 1) and whole(at, EXACT - 1) and whole(kept, EXACT - 1) then
      return {a, part, of, at, false, letter, at <= now and kept or 0}
    end
  elseif letter == SLIDING and size == 33 then
    local _, start, this, last, kept = unpacked('<Bdddd', text)
    if whole(start, EXACT - 1) and whole(this, COUNT_MAX) and whole(last, COUNT_MAX) and whole(kept, EXACT - 1) then
      return {start, this, last, false, false, letter, start <= now and kept or 0}
    end
  elseif letter and letter >= 48 and letter <= 57 and size <= PLAIN_MAX and match(text, '^%d+$') then
    return {math.min(tonumber(text), COUNT_MAX), false, false, false, false, PLAIN, 0}
  end
  return nil
end

local function printable(text) return (string.gsub(string.sub(text, 1, 200), '[^ -~]', '?')) end

-- What each key held, as the reply says it: a state of ours, '-' for nothing, or '!' and why it cannot be used. Counters by
-- key; none where it cannot be used.
local texts, states = {}, {}

local function holds(k, what)
  texts[k] = '!CORRUPT ' .. printable(keys[first + k]) .. ' holds ' .. what .. '; delete the key to start it anew\n'
  states[k] = nil
end

for k = 1, last do
  local text = pcall('GET', keys[first + k])
  if not text then
    texts[k], states[k] = '-', {false, false, false, false, false, false, 0}
  elseif type(text) == 'string' then
    local s = parse(text)
    texts[k], states[k] = text, s
    if not s then
      holds(k, '"' .. printable(string.sub(text, 1, 60)) .. '"')
    elseif s[6] == PLAIN then
      texts[k] = text .. '\n'
    end
  elseif string.find(text.err, 'WRONGTYPE', 1, true) then
    holds(k, 'no text')
  else
    texts[k] = '!' .. printable(text.err) .. '\n'
  end
end

-- === 2. Decide all ===

-- The quotient and the remainder of x*y/d, for x, y < 2^53 and d < 2^49; a quotient of 2^52 or more is 2^52, 0.
local function muldiv(x, y, d)
  local p = x * y
  if p < EXACT then
    local r = fmod(p, d)
    p = (p - r) / d
    if p >= WAIT_MAX then return WAIT_MAX, 0 end
    return p, r
  end
  if x > y then x, y = y, x end
  local yb = fmod(y, d)
  local whole = x * ((y - yb) / d)
  local chunk = 1
  while chunk * 8 <= x do chunk = chunk * 8 end
  local q, r = 0, 0
  while chunk >= 1 do
    local digit = floor(x / chunk)
    x = x - digit * chunk
    chunk = chunk / 8
    local v = r * 8 + digit * yb
    r = fmod(v, d)
    q = q * 8 + (v - r) / d
  end
  q = q + whole
  if q >= WAIT_MAX then return WAIT_MAX, 0 end
  return q, r
end

-- Of n times these hits one after the other, how many times they fit into what is left, and how many hits to take in all
-- (below 0 to give back, nil to leave the counter alone). Only takes, counts and looks come more than once.
local function weigh(act, hits, n, left)
  if act == GIVE then return 1, -hits end
  local fits = 0
  if hits <= left then
    fits = n
    if n * hits > left and act ~= LOOK then fits = (left - fmod(left, hits)) / hits end
  end
  if act == COUNT then return fits, n * hits end
  if act == LOOK then return fits, nil end
  if fits > 0 then return fits, fits * hits end
  if act == DRAIN and left > 0 then return 0, left end
  return 0, nil
end

-- What is given back may be late. If it was taken, since when that is void (see Cost::GiveBack), else nil.
local since

-- By algorithm: f(counter, act, l, w, burst, hits, n), where l in w microseconds is the rate, in lowest terms for buckets,
-- or the window. Each applies the act n times and answers how often it fitted. l is not 0, but where a fixed window
-- counts all the same.
local judges, used = {}, {}
for c = 2, ask[1] - 1, 7 do used[ask[c]] = true end

-- [1] tokens, [2] part, [3] of, [4] at
if used[BUCKET] then
  judges[BUCKET] = function(s, act, l, w, burst, hits, n)
    local tokens, f, at = s[1], s[2], s[4]
    if tokens then
      if s[3] ~= w then f = muldiv(f, w, s[3]) end
      if now > at then
        local q, r = muldiv(now - at, l, w)
        tokens, f, at = tokens + q, f + r, now
        if f >= w then tokens, f = tokens + 1, f - w end
      end
      if tokens >= burst then tokens, f = burst, 0 end
    else
      tokens, f, at = burst, 0, now
    end
    local fits, take = weigh(act, hits, n, tokens)
    if act == GIVE and since then
      -- Less what has refilled in its place.
      local q, r = 0, 0
      if at > since then q, r = muldiv(at - since, l, w) end
      if q >= hits then return fits end
      take, f = take + q, f - r
      if f < 0 then take, f = take + 1, f + w end
    end
    if take then
      tokens = tokens - take
      local ttl = 0
      if tokens >= burst then
        tokens, f = burst, 0
      else
        if tokens < -COUNT_MAX then tokens = -COUNT_MAX end
        -- Until it is full: the smallest dt with dt*l >= (burst - tokens)*w - f.
        local q, r = muldiv(burst - tokens, w, l)
        if q < WAIT_MAX then
          local fr = fmod(f, l)
          q = q - (f - fr) / l
          if r > fr then q = q + 1 end
        end
        ttl = q
      end
      s[1], s[2], s[3], s[4], s[5], s[6] = tokens, f, w, at, ttl, BUCKET
    end
    return fits
  end
end

-- [1] whole microseconds ahead, [2] part, [3] of, [4] at
if used[GCRA] then
  judges[GCRA] = function(s, act, l, w, burst, hits, n)
    local a, r, at = s[1], s[2], s[4]
    if a then
      if s[3] ~= l then r = muldiv(r, l, s[3]) end
      if now > at then
        a, at = a - (now - at), now
        if a < 0 then a, r = 0, 0 end
      end
    else
      a, r, at = 0, 0, now
    end
    -- How many hits fit when the arrival time may be so far ahead.
    local left = burst
    if a > 0 or r > 0 then
      local room, room_r = muldiv(burst, w, l)
      room, room_r = room - a, room_r - r
      if room_r < 0 then room, room_r = room - 1, room_r + l end
      if room < 0 then
        left = -1
      else
        local q, rest = muldiv(room, l, w)
        rest = rest + room_r
        left = q + (rest - fmod(rest, w)) / w
      end
    end
    local fits, take = weigh(act, hits, n, left)
    if take then
      local c, c_r = muldiv(act == GIVE and hits or take, w, l)
      if act == GIVE and since then
        if at > since then c = c - (at - since) end
        if c < 0 or (c == 0 and c_r == 0) then return fits end
      end
      if act == GIVE then
        a, r = a - c, r - c_r
        if r < 0 then a, r = a - 1, r + l end
        if a < 0 then a, r = 0, 0 end
      else
        a, r = a + c, r + c_r
        if r >= l then a, r = a + 1, r - l end
        if a >= WAIT_MAX then a, r = WAIT_MAX, 0 end
      end
      s[1], s[2], s[3], s[4], s[5], s[6] = a, r, l, at, r > 0 and a + 1 or a, GCRA
    end
    return fits
  end
end

-- [1] start, [2] this, [3] last
if used[SLIDING] then
  judges[SLIDING] = function(s, act, l, w, burst, hits, n)
    local start, this, last, elapsed = s[1], 0, 0, nil
    if start then
      elapsed = now > start and now - start or 0
      if elapsed < w then
        this, last = s[2], s[3]
      else
        if elapsed < 2 * w then last = s[2] end
        start = false
      end
    end
    if not start then
      elapsed = fmod(now, w)
      start = now - elapsed
    end
    local share, rest = muldiv(last, w - elapsed, w)
    if rest > 0 then share = share + 1 end
    local fits, take = weigh(act, hits, n, l - this - share)
    if act == GIVE and since and since ~= start then
      if since ~= start - w then return fits end
      last, take = last > hits and last - hits or 0, 0
    end
    if take then
      this = this + take
      if this < 0 then this = 0 elseif this > COUNT_MAX then this = COUNT_MAX end
      local ttl = 0
      if this > 0 then ttl = 2 * w - elapsed elseif last > 0 then ttl = w - elapsed end
      s[1], s[2], s[3], s[5], s[6] = start, this, last, ttl, SLIDING
    end
    return fits
  end
end

-- [1] start, [2] count
if used[FIXED] then
  judges[FIXED] = function(s, act, l, w, burst, hits, n)
    local start, count, elapsed = s[1], 0, nil
    if start then
      elapsed = now > start and now - start or 0
      if elapsed < w then count = s[2] else start = false end
    end
    if not start then
      elapsed = fmod(now, w)
      start = now - elapsed
    end
    local fits, take = weigh(act, hits, n, l - count)
    if act == GIVE and since and since ~= start then return fits end
    if take then
      count = count + take
      if count < 0 then count = 0 elseif count > COUNT_MAX then count = COUNT_MAX end
      s[1], s[2], s[5], s[6] = start, count, count > 0 and w - elapsed or 0, FIXED
    end
    return fits
  end
end

-- [1] count, for kept microseconds
if used[PLAIN] then
  judges[PLAIN] = function(s, act, l, kept, ends_in, hits, n)
    local count = s[1] or 0
    local fits, take = weigh(act, hits, n, l - count)
    if take then
      count = count + take
      if count < 0 then count = 0 elseif count > COUNT_MAX then count = COUNT_MAX end
      s[1], s[5], s[6] = count, count > 0 and kept or 0, PLAIN
    end
    return fits
  end
end

-- A charge of the kind that stands at c in what is asked, n times on a counter.
local function judge(s, c, n)
  local algorithm, act, l, hits = ask[c], ask[c + 1], ask[c + 3], ask[c + 6]
  if l == 0 and not ((algorithm == FIXED or algorithm == PLAIN) and (act == COUNT or (act == LOOK and hits == 0))) then
    return (act == GIVE or hits == 0) and n or 0
  end
  if act == GIVE then
    since = ask[c + 2]
    since = since <= 0 and -since or nil
  end
  return judges[algorithm](s, act, l, ask[c + 4], ask[c + 5], hits, n)
end

-- Whether a charge of this kind can be judged by what its key holds.
local function usable(k, c)
  local s = states[k]
  if s and s[6] and s[6] ~= ask[c] then holds(k, 'the counter of another algorithm') end
  return states[k]
end

-- A counter that is as a fresh one after a request is a fresh one for the next.
local function forget(s) s[1], s[6] = false, false end

local fitted, e = {}, 0

-- A request of the several charges at i to j, two numbers each: the key and the kind.
local function several(i, j)
  local all = true
  for o = i, j, 2 do all = usable(ask[o], ask[o + 1]) and all end
  if not all then
    for _ = i, j, 2 do
      e = e + 1
      fitted[e] = 0
    end
    return
  end
  -- As if the request passed...
  local before, refused, quota, quota_fits = {}, false, false, false
  local start = e
  for o = i, j, 2 do
    local k, c = ask[o], ask[o + 1]
    local s = states[k]
    if not before[k] then before[k] = {s[1], s[2], s[3], s[4], s[5], s[6], s[7]} end
    local fits = judge(s, c, 1)
    e = e + 1
    fitted[e] = fits
    local role = ask[c + 2]
    if role == ENFORCE then
      if fits == 0 then refused = true end
    elseif role == QUOTA then
      quota = true
      if fits == 1 then quota_fits = true end
    end
  end
  -- ...and when it does not, as if it had not come, but for the hits that are spent in spite of that.
  if refused or (quota and not quota_fits) then
    for k, s in pairs(before) do states[k] = s end
    for o = i, j, 2 do
      start = start + 1
      local act = ask[ask[o + 1] + 1]
      if act == COUNT or (act == DRAIN and fitted[start] == 0) then judge(states[ask[o]], ask[o + 1], 1) end
    end
  end
  for k in pairs(before) do
    if states[k][5] == 0 then forget(states[k]) end
  end
end

local i, asked = ask[1], #ask
while i <= asked do
  local k, c, n = ask[i], ask[i + 1], ask[i + 2]
  if k > 0 then
    -- One charge alone has done all that it does, whether it is refused or not.
    local s = states[k]
    if s and s[6] and s[6] ~= ask[c] then s = usable(k, c) end
    e = e + 1
    fitted[e] = s and judge(s, c, n) or 0
    if s and s[5] == 0 then forget(s) end
    i = i + 3
  else
    several(i + 2, i + 1 + 2 * c)
    i = i + 2 + 2 * c
  end
end

-- === 3. Write all ===

-- Moving an expiry is half the price of a write, so it stays where the server keeps the counter long enough. For that
-- each state says until when it is kept. It is kept for 2 ms more than it says: SET counts whole milliseconds, from a
-- moment that may be earlier than ours. Windows end when they end. A bucket is full later with each hit, so it is kept
-- for a while more, lest the expiry moves with each of them.
--
-- %d goes through a C long, which is too short on 32-bit servers; %.0f takes twice its time.
local D = format('%d', 1099511627776) == '1099511627776' and '%d' or '%.0f'

-- Where one fails, for want of memory or of a right to write, the first one does, and nothing is written. Deletions last:
-- they succeed where memory is short, and must not be the half that does.
local deletions = false
for k = 1, last do
  local s = states[k]
  local ttl = s and s[5]
  if ttl == 0 then
    deletions = true
  elseif ttl then
    local algorithm, ms = s[6], nil
    local kept = s[7]
    if now + ttl > kept then
      if algorithm == BUCKET or algorithm == GCRA then ttl = ttl + ttl / 4 + MORE_US end
      ms = ceil(ttl / 1000)
      kept = now + ms * 1000
      if kept >= EXACT then kept = EXACT - 1 end
    end
    local text
    if algorithm == FIXED then
      text = pack('<Bddd', algorithm, s[1], s[2], kept)
    elseif algorithm == SLIDING then
      text = pack('<Bdddd', algorithm, s[1], s[2], s[3], kept)
    elseif algorithm == PLAIN then
      text = format(D, s[1])
    else
      text = pack('<Bddddd', algorithm, s[1], s[2], s[3], s[4], kept)
    end
    if ms then
      call('SET', keys[first + k], text, 'PX', format(D, ms + (algorithm == PLAIN and 0 or 2)))
    else
      call('SET', keys[first + k], text, 'KEEPTTL')
    end
  end
end
if deletions then
  for k = 1, last do
    local s = states[k]
    if s and s[5] == 0 and texts[k] ~= '-' then call('DEL', keys[first + k]) end
  end
end
-- unpack takes no more than some 8,000 at once, and by now all is written.
local bytes = {}
for from = 1, e, 4096 do bytes[#bytes + 1] = string.char(unpack(fitted, from, math.min(from + 4095, e))) end
return {now, table.concat(bytes), table.concat(texts)}

-- Decides all charges of one request on the server that holds their counters.
--
-- This is `algorithm::decide` once more, and the two agree to the last microsecond (tests/algorithms). Read the Rust for
-- the reasons; here stands only what Lua makes different:
--
-- * Numbers are doubles. All values stay integers below 2^53, and products go through muldiv, whose proof is in
--   src/algorithm/arith.rs. Remainders are math.fmod's, which is exact for all doubles; the operator % is not.
-- * A script that fails has written what it wrote. So it reads all keys, then decides, then writes: whatever can fail
--   for reasons of the data fails before the first write.
-- * Each call builds all functions and tables anew, and that costs more than the arithmetic. So a function is only made
--   for an algorithm that the request uses, and a counter is one table.
--
-- What KEYS, ARGV and the reply mean is written in src/store/script.rs.
-- Works on Redis 6.2 and later. Without a shebang, so that a call may touch keys of several slots of its node.

local EXACT = 9007199254740992 -- 2^53
local WAIT_MAX = 4503599627370496 -- 2^52
local COUNT_MAX = 562949953421311 -- 2^49 - 1
local NEVER = -1

-- Letters: algorithms b g s f r, acts T D C L G, roles E S Q.
local BUCKET, GCRA, SLIDING, FIXED, PLAIN = 98, 103, 115, 102, 114
local DRAIN, COUNT, LOOK, GIVE = 68, 67, 76, 71
local ENFORCE, QUOTA = 69, 81

local floor, fmod = math.floor, math.fmod
local byte, match, format = string.byte, string.match, string.format
local ARGV, args = ARGV, #ARGV

local now = ARGV[1]
if now == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = tonumber(now)
end
if now >= EXACT then now = EXACT - 1 end

-- === 1. Read all ===

-- The numbers of a text that we wrote, or nil. A plain count may be another's, and more than we would count.
local function parse(algorithm, text)
  local a, b, c, d
  if algorithm == PLAIN then
    a = match(text, '^%d+$')
    return a and {math.min(tonumber(a), COUNT_MAX)} or nil
  elseif algorithm == BUCKET then
    a, b, c, d = match(text, '^b (%-?%d+) (%d+) (%d+) (%d+)$')
  elseif algorithm == GCRA then
    a, b, c, d = match(text, '^g (%d+) (%d+) (%d+) (%d+)$')
  elseif algorithm == SLIDING then
    a, b, c = match(text, '^s (%d+) (%d+) (%d+)$')
  else
    a, b = match(text, '^f (%d+) (%d+)$')
  end
  if not a then return nil end
  a, b = tonumber(a), tonumber(b)
  if c then c = tonumber(c) end
  if d then
    d = tonumber(d)
    if b >= c or c > COUNT_MAX or d >= EXACT or a > WAIT_MAX or a < -COUNT_MAX then return nil end
  elseif a >= EXACT or b > COUNT_MAX or (c and c > COUNT_MAX) then
    return nil
  end
  return {a, b, c, d}
end

-- States and the texts they came from, by the index of the key as it stands in ARGV. Of a state s, s[1] to s[4] are its
-- numbers, and none for a fresh one; s.ttl is set when it has to be written, to 0 when it has to be deleted.
local states, texts, used = {}, {}, {}
for i = 2, args, 6 do
  local k, algorithm = ARGV[i], byte(ARGV[i + 1])
  used[algorithm] = true
  if not states[k] then
    local key = KEYS[tonumber(k)]
    local text = redis.pcall('GET', key)
    local what
    if not text then
      states[k] = {}
    elseif type(text) == 'string' then
      texts[k], states[k] = text, parse(algorithm, text)
      if not states[k] then what = '"' .. string.gsub(string.sub(text, 1, 60), '[^ -~]', '?') .. '"' end
    elseif match(text.err, '^WRONGTYPE') then
      what = 'no text'
    else
      return text
    end
    if what then
      return redis.error_reply('CORRUPT ' .. key .. ' holds ' .. what .. '; delete the key to start it anew')
    end
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

-- Whether hits fit into what is left, how many to take (below 0 to give back, nil to leave the counter alone), and whether
-- all hits together are too many.
local function weigh(act, hits, all, left)
  if act == GIVE then return 1, -hits, false end
  local fits, short = hits <= left and 1 or 0, all > left
  if act == COUNT then return fits, hits, short end
  if act == LOOK then return fits, nil, short end
  if fits == 1 then return 1, hits, short end
  if act == DRAIN and left > 0 then return 0, left, short end
  return 0, nil, short
end

-- By algorithm: f(state, act, l, w, burst, hits, all), where l in w microseconds is the rate, in lowest terms for buckets, or
-- the window. Each applies the act and answers fits, remaining, reset, retry, next. l is not 0, but where a fixed
-- window counts all the same.
local judges = {}

if used[BUCKET] then
  -- Microseconds until so many more tokens are there: the smallest dt with dt*l >= missing*w - f.
  local function fill(missing, f, l, w)
    local q, r = muldiv(missing, w, l)
    if q == WAIT_MAX then return WAIT_MAX end
    local fr = fmod(f, l)
    q = q - (f - fr) / l
    if r > fr then return q + 1 end
    return q
  end

  -- [1] tokens, [2] part, [3] of, [4] at
  judges[BUCKET] = function(s, act, l, w, burst, hits, all)
    local n, f, at = s[1], s[2], s[4]
    if n then
      if s[3] ~= w then f = muldiv(f, w, s[3]) end
      if now > at then
        local q, r = muldiv(now - at, l, w)
        n, f, at = n + q, f + r, now
        if f >= w then n, f = n + 1, f - w end
      end
      if n >= burst then n, f = burst, 0 end
    else
      n, f, at = burst, 0, now
    end
    local fits, take, short = weigh(act, hits, all, n)
    if take then
      n = n - take
      if n >= burst then n, f = burst, 0 end
      if n < -COUNT_MAX then n = -COUNT_MAX end
    end
    local reset, retry, next = 0, 0, 0
    local remaining = n > 0 and n or 0
    if n < burst then
      reset = fill(burst - n, f, l, w)
      next = fill(remaining + 1 - n, f, l, w)
    end
    if short then retry = all > burst and NEVER or fill(all - n, f, l, w) end
    if take then s[1], s[2], s[3], s[4], s.ttl = n, f, w, at, reset end
    return fits, n, reset, retry, next
  end
end

if used[GCRA] then
  -- How many hits fit when the arrival time is a + r/l ahead and may be most + most_r/l; -1 when overdrawn.
  local function left(a, r, most, most_r, l, w, burst)
    if a > most or (a == most and r > most_r) then return -1 end
    if a == 0 and r == 0 then return burst end
    local room, room_r = most - a, most_r - r
    if room_r < 0 then room, room_r = room - 1, room_r + l end
    local q, rest = muldiv(room, l, w)
    rest = rest + room_r
    return q + (rest - fmod(rest, w)) / w
  end

  -- Microseconds until as much time fits as us + parts/l, which is beyond the most, rounded up. Parts are below 2*l.
  local function wait(us, parts, l)
    if parts > l then us = us + 2 elseif parts > 0 then us = us + 1 end
    if us > WAIT_MAX then return WAIT_MAX end
    return us > 0 and us or 0
  end

  -- [1] whole microseconds ahead, [2] part, [3] of, [4] at
  judges[GCRA] = function(s, act, l, w, burst, hits, all)
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
    local most, most_r = muldiv(burst, w, l)
    local cost, cost_r = muldiv(hits, w, l)
    local n = left(a, r, most, most_r, l, w, burst)
    local fits, take, short = weigh(act, hits, all, n)
    if take then
      if take < 0 then
        a, r = a - cost, r - cost_r
        if r < 0 then a, r = a - 1, r + l end
        if a < 0 then a, r = 0, 0 end
      else
        local c, c_r = cost, cost_r
        if take ~= hits then c, c_r = muldiv(take, w, l) end
        a, r = a + c, r + c_r
        if r >= l then a, r = a + 1, r - l end
        if a >= WAIT_MAX then a, r = WAIT_MAX, 0 end
      end
      n = left(a, r, most, most_r, l, w, burst)
    end
    local remaining = n > 0 and n or 0
    local reset, retry, next = r > 0 and a + 1 or a, 0, 0
    if reset > 0 then
      local c, c_r = muldiv(remaining + 1, w, l)
      next = wait(a + c - most, r + c_r - most_r, l)
    end
    if short then
      if all > burst then
        retry = NEVER
      else
        local c, c_r = cost, cost_r
        if all ~= hits then c, c_r = muldiv(all, w, l) end
        retry = wait(a + c - most, r + c_r - most_r, l)
      end
    end
    if take then s[1], s[2], s[3], s[4], s.ttl = a, r, l, at, reset end
    return fits, n, reset, retry, next
  end
end

if used[SLIDING] then
  -- For how long at a window's end the share of the window before is at most room.
  local function covered(room, before, w)
    if before <= room then return w end
    return (muldiv(room, w, before))
  end

  -- Microseconds until hits fit: in this window, or else in the next one.
  local function wait(hits, this, last, elapsed, l, w)
    local room = l - hits - this
    if room < 0 then return w - elapsed + (w - covered(l - hits, this, w)) end
    local us = w - elapsed - covered(room, last, w)
    return us > 0 and us or 0
  end

  -- [1] start, [2] this, [3] last
  judges[SLIDING] = function(s, act, l, w, burst, hits, all)
    local start, this, last, elapsed = s[1], 0, 0, nil
    if start then
      elapsed = now > start and now - start or 0
      if elapsed < w then
        this, last = s[2], s[3]
      else
        if elapsed < 2 * w then last = s[2] end
        start = nil
      end
    end
    if not start then
      elapsed = fmod(now, w)
      start = now - elapsed
    end
    local share, rest = muldiv(last, w - elapsed, w)
    if rest > 0 then share = share + 1 end
    local fits, take, short = weigh(act, hits, all, l - this - share)
    if take then
      this = this + take
      if this < 0 then this = 0 elseif this > COUNT_MAX then this = COUNT_MAX end
    end
    local n = l - this - share
    local remaining = n > 0 and n or 0
    local reset, retry, next = 0, 0, 0
    if this > 0 then reset = 2 * w - elapsed elseif last > 0 then reset = w - elapsed end
    if reset > 0 then next = wait(remaining + 1, this, last, elapsed, l, w) end
    if short then retry = all > l and NEVER or wait(all, this, last, elapsed, l, w) end
    if take then s[1], s[2], s[3], s.ttl = start, this, last, reset end
    return fits, n, reset, retry, next
  end
end

if used[FIXED] then
  -- [1] start, [2] count
  judges[FIXED] = function(s, act, l, w, burst, hits, all)
    local start, count, elapsed = s[1], 0, nil
    if start then
      elapsed = now > start and now - start or 0
      if elapsed < w then count = s[2] else start = nil end
    end
    if not start then
      elapsed = fmod(now, w)
      start = now - elapsed
    end
    local fits, take, short = weigh(act, hits, all, l - count)
    if take then
      count = count + take
      if count < 0 then count = 0 elseif count > COUNT_MAX then count = COUNT_MAX end
    end
    local reset = count > 0 and w - elapsed or 0
    local retry = 0
    if short then retry = all > l and NEVER or w - elapsed end
    if take then s[1], s[2], s.ttl = start, count, reset end
    return fits, l - count, reset, retry, reset
  end
end

if used[PLAIN] then
  -- [1] count, for kept microseconds; ends_in by the clock of who asks
  judges[PLAIN] = function(s, act, l, kept, ends_in, hits, all)
    local count = s[1] or 0
    local fits, take, short = weigh(act, hits, all, l - count)
    if take then
      count = count + take
      if count < 0 then count = 0 elseif count > COUNT_MAX then count = COUNT_MAX end
    end
    local reset = count > 0 and ends_in or 0
    local retry = 0
    if short then retry = all > l and NEVER or ends_in end
    if take then s[1], s.ttl = count, count > 0 and kept or 0 end
    return fits, l - count, reset, retry, reset
  end
end

-- all: hits that have to fit before it is worth to ask again, or nil for the charge's own.
local function judge(i, algorithm, act, all)
  local l, w, hits = tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), tonumber(ARGV[i + 5])
  local counts = algorithm == FIXED or algorithm == PLAIN
  if l == 0 and not (counts and (act == COUNT or (act == LOOK and hits == 0))) then
    local to_end = algorithm == PLAIN and tonumber(ARGV[i + 4]) or w - fmod(now, w)
    if act == GIVE or hits == 0 then return 1, 0, to_end, 0, to_end end
    return 0, 0, to_end, NEVER, to_end
  end
  return judges[algorithm](states[ARGV[i]], act, l, w, tonumber(ARGV[i + 4]), hits, all or hits)
end

-- As if the request passed...
local reply = {0}
local refused, quota, quota_fits = false, false, false
local o = 2
for i = 2, args, 6 do
  local algorithm, act, role = byte(ARGV[i + 1], 1, 3)
  local fits
  fits, reply[o + 1], reply[o + 2], reply[o + 3], reply[o + 4] = judge(i, algorithm, act)
  reply[o] = fits
  o = o + 5
  if role == ENFORCE then
    if fits == 0 then refused = true end
  elseif role == QUOTA then
    quota = true
    if fits == 1 then quota_fits = true end
  end
end
if quota and not quota_fits then refused = true end
if refused then reply[1] = 1 end

-- ...and when it does not, as if it had not come, but for the hits that are spent in spite of that. One charge alone has
-- done all that it does.
if refused and args > 7 then
  for i = 2, args, 6 do
    local k = ARGV[i]
    states[k] = texts[k] and parse(byte(ARGV[i + 1]), texts[k]) or {}
  end
  -- For each counter, how many hits it has to hold for all charges that name it to fit one after the other.
  local sums, most = {}, {}
  for i = 2, args, 6 do
    local k, act, hits = ARGV[i], byte(ARGV[i + 1], 2), tonumber(ARGV[i + 5])
    local sum = sums[k] or 0
    local held = act == GIVE and sum - hits or sum + hits
    if held < 0 then held = 0 elseif held > COUNT_MAX then held = COUNT_MAX end
    if act ~= LOOK then sums[k] = held end
    if held > (most[k] or 0) then most[k] = held end
  end
  o = 2
  for i = 2, args, 6 do
    local algorithm, act = byte(ARGV[i + 1], 1, 2)
    local fitted, first = reply[o] == 1, reply[o + 3]
    if act ~= COUNT and (act ~= DRAIN or fitted) then act = LOOK end
    local hits, all = tonumber(ARGV[i + 5]), most[ARGV[i]] or 0
    local _, remaining, reset, retry, next = judge(i, algorithm, act, all > hits and all or hits)
    if fitted then
      retry = 0
    elseif first == NEVER or (retry ~= NEVER and first > retry) then
      retry = first
    end
    reply[o + 1], reply[o + 2], reply[o + 3], reply[o + 4] = remaining, reset, retry, next
    o = o + 5
  end
end

-- === 3. Write all ===

-- Deletions last: they succeed where memory is short, and must not be the half that does.
local deletions = false
for i = 2, args, 6 do
  local k = ARGV[i]
  local s = states[k]
  local ttl = s.ttl
  if ttl == 0 then
    deletions = true
  elseif ttl then
    s.ttl = nil
    local algorithm = byte(ARGV[i + 1])
    -- Not %d: it goes through a C long, which is too short on 32-bit servers.
    local text
    if algorithm == BUCKET then
      text = format('b %.0f %.0f %.0f %.0f', s[1], s[2], s[3], s[4])
    elseif algorithm == GCRA then
      text = format('g %.0f %.0f %.0f %.0f', s[1], s[2], s[3], s[4])
    elseif algorithm == SLIDING then
      text = format('s %.0f %.0f %.0f', s[1], s[2], s[3])
    elseif algorithm == PLAIN then
      text = format('%.0f', s[1])
    else
      text = format('f %.0f %.0f', s[1], s[2])
    end
    redis.call('SET', KEYS[tonumber(k)], text, 'PX', math.ceil(ttl / 1000))
  end
end
if deletions then
  for i = 2, args, 6 do
    local k = ARGV[i]
    if states[k].ttl == 0 and texts[k] then
      texts[k] = nil
      redis.call('DEL', KEYS[tonumber(k)])
    end
  end
end
return reply

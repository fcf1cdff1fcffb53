-- Tells who trims the log that cursors were set back.
return call('HINCRBY', KEYS[1], 'gen', 1)

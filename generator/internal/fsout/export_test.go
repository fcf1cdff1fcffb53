package fsout

// OnStep calls f after each step of Apply.
func (c *Changes) OnStep(f func()) { c.done = f }

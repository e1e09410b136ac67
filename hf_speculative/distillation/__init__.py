"""Distil a target into a draft: the teacher, students by kind of draft, losses. `training` and a draft's `Learner` use it."""
